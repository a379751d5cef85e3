//! The Python package `shoal`: `load` gives a [`Model`], whose `generate` gives [`Pieces`] to iterate over.
//!
//! A thread without Python's lock computes an answer and sends its pieces over a channel. Waiting for a piece releases the
//! lock too, and looks for signals every [`LOOK`], so that Ctrl-C raises KeyboardInterrupt within a moment even where a token
//! takes long. Closing or dropping the iterator ends the computation.
//!
//! Limits: [`AHEAD`] pieces are computed ahead of their reader.
#![forbid(unsafe_code)]

use std::{
    ops::ControlFlow,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    },
    thread,
    time::Duration,
};

use embed::{Finish, Options};
use pyo3::{create_exception, exceptions::PyException, prelude::*};

/// Pieces of an answer that wait to be read; then its computation waits.
const AHEAD: usize = 64;
/// How often a wait for a piece looks for signals.
const LOOK: Duration = Duration::from_millis(50);

create_exception!(shoal, Error, PyException, "What went wrong, as a sentence.");

fn raised(error: embed::Error) -> PyErr {
    Error::new_err(error.to_string())
}

/// A loaded model. Several threads may use one; its answers take turns.
#[pyclass(frozen, module = "shoal")]
struct Model(Arc<embed::Model>);

#[pymethods]
impl Model {
    /// What it was called when it was loaded.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("<shoal.Model {:?}>", self.0.name())
    }

    /// Begin to answer a prompt; the defaults are those of `shoal run`.
    #[pyo3(signature = (prompt, *, max_tokens=512, seed=0, temperature=0.0, raw=false))]
    fn generate(
        &self,
        prompt: String,
        max_tokens: usize,
        seed: u64,
        temperature: f32,
        raw: bool,
    ) -> PyResult<Pieces> {
        let (model, options) = (self.0.clone(), Options { seed, max_tokens, temperature, raw });
        let (send, receive) = mpsc::sync_channel(AHEAD);
        let closed = Arc::new(AtomicBool::new(false));
        let theirs = closed.clone();
        thread::Builder::new()
            .name("shoal-answer".into())
            .spawn(move || answer(&model, &prompt, &options, &theirs, &send))?;
        Ok(Pieces { news: Mutex::new(Some(receive)), closed, finish: OnceLock::new() })
    }
}

/// What the computing thread sends.
enum News {
    Piece(String),
    Ended(Result<Finish, embed::Error>),
}

fn answer(
    model: &embed::Model,
    prompt: &str,
    options: &Options,
    closed: &AtomicBool,
    send: &SyncSender<News>,
) {
    let closed = || closed.load(Ordering::SeqCst);
    let ended = model.generate(prompt, options, &closed, &mut |piece| match send
        .send(News::Piece(piece.to_owned()))
    {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    });
    // Without a reader the result is not needed.
    let _ = send.send(News::Ended(ended));
}

/// The text of an answer, piece by piece.
#[pyclass(frozen, module = "shoal")]
struct Pieces {
    news: Mutex<Option<Receiver<News>>>,
    closed: Arc<AtomicBool>,
    finish: OnceLock<Finish>,
}

#[pymethods]
impl Pieces {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<String>> {
        loop {
            match py.detach(|| self.wait()) {
                Err(RecvTimeoutError::Timeout) => py.check_signals().inspect_err(|_| self.cancel())?,
                Ok(Some(News::Piece(text))) => return Ok(Some(text)),
                Ok(None) => return Ok(None),
                Ok(Some(News::Ended(ended))) => {
                    self.close();
                    let finish = ended.map_err(raised)?;
                    let _ = self.finish.set(finish);
                    return Ok(None);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.close();
                    return Err(Error::new_err("the library failed; please report it"));
                }
            }
        }
    }

    fn __enter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.end(py);
    }

    /// End the answer; further pieces do not come.
    #[pyo3(name = "close")]
    fn end(&self, py: Python<'_>) {
        py.detach(|| self.cancel());
    }

    /// Why the answer ended.
    #[getter]
    fn finish(&self) -> Option<&'static str> {
        self.finish.get().map(|finish| finish.name())
    }
}

impl Pieces {
    /// The next news, within [`LOOK`]; `None` when it was closed.
    fn wait(&self) -> Result<Option<News>, RecvTimeoutError> {
        let news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.as_ref().map(|news| news.recv_timeout(LOOK)).transpose()
    }

    fn cancel(&self) {
        if self.close() {
            let _ = self.finish.set(Finish::Cancelled);
        }
    }

    /// Ends the computation, at its next pass or piece; whether it was open.
    fn close(&self) -> bool {
        self.closed.store(true, Ordering::SeqCst);
        self.news.lock().unwrap_or_else(PoisonError::into_inner).take().is_some()
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        self.close();
    }
}

/// Load a .gguf file by its path, a model by its name in `shoal model list`, or "minnow", which is inside the package.
#[pyfunction]
#[pyo3(signature = (model="minnow", *, threads=0))]
fn load(py: Python<'_>, model: &str, threads: u16) -> PyResult<Model> {
    let model = py.detach(|| embed::Model::load(model, threads)).map_err(raised)?;
    Ok(Model(Arc::new(model)))
}

#[pymodule]
fn _shoal(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<Error>())?;
    module.add_class::<Model>()?;
    module.add_class::<Pieces>()?;
    module.add_function(wrap_pyfunction!(load, module)?)
}
