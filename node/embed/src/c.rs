//! The functions of `include/shoal.h`, which is made of this file: comments of what is public here are the header's.
//!
//! Unsafe code is needed where C calls: names that the linker sees, and the bytes of its strings. All else is safe by its
//! type, since Rust fixes how these look to C: a handle is an `Option<Box<_>>` or an `Option<&_>`, a pointer that may be NULL. What a type
//! cannot say, the header asks of its caller. Nothing here is called from Rust.
//!
//! A panic ends at each function's edge ([`guarded`]) and is reported as any other error.
#![allow(unsafe_code)]

use std::{
    cell::RefCell,
    ffi::{CStr, CString, c_char, c_int, c_void},
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Error, Finish, Model, Options};

/// The number of this interface. It changes when a program that was compiled with an older header could not go on: compare
/// it with shoal_abi() where the library is loaded at run time.
pub const SHOAL_ABI: u32 = 1;

/// shoal_generate: the model ended its answer.
pub const SHOAL_STOP: c_int = 0;
/// shoal_generate: max_tokens, or what the model can hold, is used up.
pub const SHOAL_LENGTH: c_int = 1;
/// shoal_generate: shoal_cancel was called, or the callback returned another number than 0.
pub const SHOAL_CANCELLED: c_int = 2;
/// shoal_generate: shoal_last_error() says what went wrong.
pub const SHOAL_FAILED: c_int = -1;

/// A loaded model. Several threads may use one at once; its answers take turns.
pub struct Handle {
    model: Model,
    /// How many times it was cancelled: an answer ends when this differs from what it was at the beginning.
    cancels: AtomicU64,
}

// The header lets several threads use one.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Handle>()
};

/// How an answer is made.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Choices {
    /// The same seed and prompt give the same answer on every machine.
    pub seed: u64,
    /// Most tokens to generate.
    pub max_tokens: u32,
    /// 0 always takes the likeliest token; higher is more varied.
    pub temperature: f32,
    /// Other than 0: the prompt is continued as it stands, instead of being put into the model's chat template.
    pub raw: u32,
}

impl From<&Choices> for Options {
    fn from(from: &Choices) -> Self {
        Self {
            seed: from.seed,
            max_tokens: from.max_tokens as usize,
            temperature: from.temperature,
            raw: from.raw != 0,
        }
    }
}

/// Gets an answer's text piece by piece, on the thread that called shoal_generate: UTF-8, whole characters, `bytes` of them
/// and then a NUL, valid until it returns. 0 goes on, another number ends the answer. It must return: no longjmp, no exception.
pub type OnPiece = Option<extern "C" fn(piece: *const c_char, bytes: usize, user: *mut c_void) -> c_int>;

thread_local! {
    /// What went wrong in this thread's last call.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

fn remember(error: Option<Error>) {
    let text = error.map(|Error(text)| text.replace('\0', " "));
    LAST.with_borrow_mut(|last| *last = text.and_then(|text| CString::new(text).ok()));
}

/// What `work` gives, or `otherwise` and an error that is remembered.
fn guarded<T>(otherwise: T, work: impl FnOnce() -> Result<T, Error>) -> T {
    // What `work` changes is dropped with its panic, or behind locks that are made for it.
    let ended = catch_unwind(AssertUnwindSafe(work));
    let failed = ended.unwrap_or_else(|_| Err(Error("the library failed; please report it".into())));
    match failed {
        Ok(value) => {
            remember(None);
            value
        }
        Err(error) => {
            remember(Some(error));
            otherwise
        }
    }
}

/// A string of the caller, which `what` names.
fn text(string: *const c_char, what: &str) -> Result<String, Error> {
    if string.is_null() {
        return Err(Error(format!("{what} is NULL")));
    }
    // SAFETY: it is not NULL, and the header asks for a string that ends with a NUL and does not change during the call; it is
    // copied before the call returns.
    let bytes = unsafe { CStr::from_ptr(string) };
    bytes.to_str().map(str::to_owned).map_err(|error| Error(format!("{what} is not UTF-8: {error}")))
}

/// The number of the interface that this library has.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_abi() -> u32 {
    SHOAL_ABI
}

/// The version of this library, as "0.1.0"; valid as long as the program runs.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// What went wrong in this thread's last call of shoal_load or shoal_generate, as a sentence; NULL when nothing did. Valid
/// until this thread calls one of them again.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ref().map_or(ptr::null(), |text| text.as_ptr()))
}

/// What holds where shoal_generate is given no options: seed 0, 512 tokens, temperature 0, chat template.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_defaults() -> Choices {
    let Options { seed, max_tokens, temperature, raw } = Options::default();
    Choices { seed, max_tokens: max_tokens as u32, temperature, raw: raw.into() }
}

/// Loads a .gguf file by its path, a model by its name in `shoal model list`, or "minnow", which is inside the library.
/// `threads` compute, 0 for as many as there are physical cores. NULL when it fails; shoal_last_error() says why.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_load(name: *const c_char, threads: u16) -> Option<Box<Handle>> {
    guarded(None, || {
        let model = Model::load(&text(name, "name")?, threads)?;
        Ok(Some(Box::new(Handle { model, cancels: AtomicU64::new(0) })))
    })
}

/// Answers `prompt` and returns when the answer has ended: SHOAL_STOP, SHOAL_LENGTH, SHOAL_CANCELLED or SHOAL_FAILED. Each piece
/// of text goes to `on_piece` with `user` as soon as it is certain. `options` may be NULL for shoal_defaults(). From within
/// `on_piece` the same model answers nothing else.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_generate(
    model: Option<&Handle>,
    prompt: *const c_char,
    options: Option<&Choices>,
    on_piece: OnPiece,
    user: *mut c_void,
) -> c_int {
    guarded(SHOAL_FAILED, || {
        let handle = model.ok_or_else(|| Error("model is NULL".into()))?;
        let on_piece = on_piece.ok_or_else(|| Error("on_piece is NULL".into()))?;
        let begun = handle.cancels.load(Ordering::SeqCst);
        let cancelled = || handle.cancels.load(Ordering::SeqCst) != begun;
        let mut string = Vec::new();
        let finish = handle.model.generate(
            &text(prompt, "prompt")?,
            &options.map(Options::from).unwrap_or_default(),
            &cancelled,
            &mut |piece| {
                string.clear();
                string.extend_from_slice(piece.as_bytes());
                string.push(0);
                match on_piece(string.as_ptr().cast(), piece.len(), user) {
                    0 => ControlFlow::Continue(()),
                    _ => ControlFlow::Break(()),
                }
            },
        )?;
        Ok(match finish {
            Finish::Stop => SHOAL_STOP,
            Finish::Length => SHOAL_LENGTH,
            Finish::Cancelled => SHOAL_CANCELLED,
        })
    })
}

/// Ends the answers that `model` computes now or that wait for their turn; from any thread, also from within a callback. What is
/// asked afterwards is answered. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_cancel(model: Option<&Handle>) {
    if let Some(handle) = model {
        handle.cancels.fetch_add(1, Ordering::SeqCst);
    }
}

/// Frees `model`, which no thread may use any more. NULL is allowed.
#[unsafe(no_mangle)]
pub extern "C" fn shoal_free(model: Option<Box<Handle>>) {
    let freed = catch_unwind(AssertUnwindSafe(|| drop(model)));
    if freed.is_err() {
        remember(Some(Error("the library failed; please report it".into())));
    }
}
