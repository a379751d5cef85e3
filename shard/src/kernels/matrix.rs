//! Weight matrices in panels, packed once when a model is loaded.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::layouts::{self, FloatKind, Panels};
use super::panel::ROWS;
use super::slab::Slab;
use super::{Cpu, Mark};
use crate::quant::Format;
use crate::{Error, Result};

/// Memory of one matrix: a piece of a slab, aligned to cache lines. Small matrices that are packed one after the other lie side
/// by side, so that all of a model is in huge pages and not only what fills some by itself. Or a piece of a file of panels.
#[derive(Clone)]
pub(super) struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// Held, not read: the memory goes with the last matrix in it.
    _owner: Owner,
}

/// What the memory of matrices belongs to.
#[derive(Clone)]
#[allow(dead_code, reason = "held for its drop")]
enum Owner {
    Slab(Arc<Slab>),
    File(Arc<memmap2::Mmap>),
}

/// The panels of a matrix, shared with it.
#[derive(Clone)]
pub struct Packed {
    arena: Arena,
    /// Bytes of all panels.
    len: usize,
}

impl Packed {
    /// `len` bytes of a file from `start`, a multiple of 64; panics where the mapping ends before them.
    pub(super) fn mapped(map: Arc<memmap2::Mmap>, start: usize, len: usize) -> Self {
        let bytes = &map[start..start + len];
        assert_eq!(bytes.as_ptr().align_offset(64), 0);
        let start = NonNull::from(bytes).cast();
        Self { arena: Arena { start, bytes: len, _owner: Owner::File(map) }, len }
    }

    /// The panels as they lie in memory.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: a matrix is shared once all its panels are packed, which writes every byte of them, and nothing writes them
        // afterwards; mapped panels were a slice of this length.
        unsafe { std::slice::from_raw_parts(self.arena.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of panels", self.len)
    }
}

// SAFETY: each piece belongs to one matrix, is written only while that is packed and shared read-only afterwards; a mapped one is only read.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Bytes of a slab. Less than an eighth of each is left unused, and that is address space only.
const SLAB: usize = 32 << 20;
/// From this size on a matrix has a slab of its own.
const LARGE: usize = SLAB / 8;
/// The slab that is being filled, as long as a matrix is in it, and how far.
static FILLING: Mutex<(Weak<Slab>, usize)> = Mutex::new((Weak::new(), 0));

impl Arena {
    /// `bytes` of memory, not initialized.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes
            .max(64)
            .checked_next_multiple_of(64)
            .ok_or_else(|| Error::invalid("a matrix does not fit the address space"))?;
        let new = |bytes: usize| {
            let slab = Slab::new(bytes).map(Arc::new);
            slab.ok_or_else(|| Error::invalid(format!("no memory for a matrix of {bytes} bytes")))
        };
        if bytes >= LARGE {
            let slab = new(bytes)?;
            return Ok(Self { start: slab.start(), bytes, _owner: Owner::Slab(slab) });
        }
        let mut filling = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
        let slab = match filling.0.upgrade().filter(|_| filling.1 + bytes <= SLAB) {
            Some(slab) => slab,
            None => {
                let slab = new(SLAB)?;
                *filling = (Arc::downgrade(&slab), 0);
                slab
            }
        };
        // SAFETY: the piece ends inside the slab.
        let start = unsafe { slab.start().add(filling.1) };
        filling.1 += bytes;
        Ok(Self { start, bytes, _owner: Owner::Slab(slab) })
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

/// How the weights of a matrix lie in its panels.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Integer(&'static Panels),
    Float(&'static FloatKind),
}

/// A matrix of `rows` outputs and `cols` inputs in panels of 16 rows.
pub struct Matrix {
    format: &'static Format,
    rows: usize,
    cols: usize,
    kind: Kind,
    /// Bytes of the codes of a panel; its scales follow.
    code_bytes: usize,
    panel_bytes: usize,
    arena: Arena,
    /// What every product is multiplied by, last.
    factor: f32,
    /// Which of those that are watched it is.
    mark: Option<Mark>,
}

/// What format and shape of a matrix make of its memory.
#[derive(Clone, Copy)]
struct Shape {
    kind: Kind,
    code_bytes: usize,
    panel_bytes: usize,
    /// Bytes of a row as it comes.
    row_bytes: usize,
    /// Bytes of all panels.
    total: usize,
}

impl Shape {
    fn new(format: &'static Format, rows: usize, cols: usize) -> Result<Self> {
        let kind = layouts::by_format(format).map(Kind::Integer);
        let kind = kind
            .or_else(|| layouts::float_by_format(format).map(Kind::Float))
            .ok_or_else(|| Error::unsupported(format!("a matrix in format {}", format.name)))?;
        let row_bytes = format
            .row_bytes(cols)
            .ok_or_else(|| Error::invalid(format!("{cols} columns are no whole {} blocks", format.name)))?;
        let (code_bytes, scale_bytes) = match kind {
            Kind::Integer(panels) => (panels.bytes)(cols),
            Kind::Float(float) => ((cols * ROWS * float.bytes).next_multiple_of(64), 0),
        };
        let panel_bytes = code_bytes + scale_bytes;
        let total = rows.div_ceil(ROWS).checked_mul(panel_bytes);
        let total = total.ok_or_else(|| Error::invalid("the matrix is too large"))?;
        Ok(Self { kind, code_bytes, panel_bytes, row_bytes, total })
    }

    fn of(self, format: &'static Format, rows: usize, cols: usize, arena: Arena) -> Matrix {
        let Self { kind, code_bytes, panel_bytes, .. } = self;
        Matrix { format, rows, cols, kind, code_bytes, panel_bytes, arena, factor: 1.0, mark: None }
    }
}

impl Matrix {
    /// The same, watched as `mark`.
    pub fn marked(self, mark: Option<Mark>) -> Self {
        Self { mark, ..self }
    }

    /// The same, whose products are multiplied by `factor` once their sums are there.
    pub fn times(self, factor: f32) -> Self {
        Self { factor, ..self }
    }

    /// What products are multiplied by.
    pub(crate) fn factor(&self) -> f32 {
        self.factor
    }

    /// Which of the matrices that are watched it is.
    pub fn mark(&self) -> Option<Mark> {
        self.mark
    }

    /// Packs `bytes`, which are `rows` rows of `cols` weights in `format`, on all threads of `cpu`.
    ///
    /// # Errors
    /// Invalid when `cols` is no whole number of blocks, when `bytes` has another length, or without memory;
    /// unsupported when the format has no panels.
    pub fn pack(cpu: &Cpu, format: &'static Format, rows: usize, cols: usize, bytes: &[u8]) -> Result<Self> {
        let shape = Shape::new(format, rows, cols)?;
        let Shape { kind, panel_bytes, row_bytes, .. } = shape;
        if row_bytes.checked_mul(rows) != Some(bytes.len()) {
            return Err(Error::invalid(format!(
                "{rows} x {cols} in {} is not {} bytes",
                format.name,
                bytes.len()
            )));
        }
        let panels = rows.div_ceil(ROWS);
        let matrix = shape.of(format, rows, cols, Arena::new(shape.total)?);
        let next = AtomicUsize::new(0);
        cpu.pool().run(&|_, _| {
            loop {
                let panel = next.fetch_add(1, Ordering::Relaxed);
                if panel >= panels {
                    break;
                }
                // SAFETY: every panel is taken by one worker only and lies inside the arena; it is zeroed before a slice is made of it.
                let out = unsafe {
                    let start = matrix.arena.start().add(panel * panel_bytes);
                    std::ptr::write_bytes(start, 0, panel_bytes);
                    std::slice::from_raw_parts_mut(start, panel_bytes)
                };
                let first = panel * ROWS;
                let mut sources = [&bytes[..0]; ROWS];
                let count = ROWS.min(rows - first);
                for (r, source) in sources[..count].iter_mut().enumerate() {
                    *source = &bytes[(first + r) * row_bytes..][..row_bytes];
                }
                match kind {
                    Kind::Integer(panels) => (panels.pack)(&sources[..count], cols, out),
                    Kind::Float(float) => float.pack(&sources[..count], out),
                }
            }
        });
        Ok(matrix)
    }

    /// The same matrix of panels that were packed before; `None` where they are not as long as such a matrix.
    pub fn of_packed(format: &'static Format, rows: usize, cols: usize, packed: Packed) -> Option<Self> {
        let shape = Shape::new(format, rows, cols).ok()?;
        (shape.total == packed.len).then(|| shape.of(format, rows, cols, packed.arena))
    }

    /// Its panels.
    pub fn packed(&self) -> Packed {
        Packed { arena: self.arena.clone(), len: self.panels() * self.panel_bytes }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The format the weights came in.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Bytes of memory held.
    pub fn resident_bytes(&self) -> usize {
        self.arena.bytes
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(ROWS)
    }

    pub(crate) fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Codes and scales of panel `index`.
    pub(crate) fn panel(&self, index: usize) -> (*const u8, *const u8) {
        assert!(index < self.panels());
        // SAFETY: the panel lies inside the arena.
        unsafe {
            let codes = self.arena.start().add(index * self.panel_bytes).cast_const();
            (codes, codes.add(self.code_bytes))
        }
    }
}

impl std::fmt::Debug for Matrix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {} in {}", self.rows, self.cols, self.format.name)
    }
}
