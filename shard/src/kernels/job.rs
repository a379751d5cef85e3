//! One matrix of a product call, and the rows that it is multiplied with, as the threads that share the work see them.

use super::{
    Isa, Matrix,
    groups::{Groups, View, tile_rows},
    matrix::Kind,
};

/// A target as the workers see it.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub matrix: *const Matrix,
    pub out: *mut f32,
    /// Which of the call's spans are its rows.
    pub span: usize,
    /// Units of work before this job and the panels of each unit.
    pub first_unit: usize,
    pub unit: usize,
    /// The sums of all places, times the factor.
    pub starts: *const i32,
}

// SAFETY: a job is filled and used inside one call, whose borrows outlive it; between calls it is cleared.
unsafe impl Send for Job {}
// SAFETY: as above; workers write disjoint parts of `out`.
unsafe impl Sync for Job {}

impl Job {
    /// The weights.
    pub fn matrix(&self) -> &Matrix {
        // SAFETY: the matrix outlives the call that the job is of.
        unsafe { &*self.matrix }
    }

    /// What the sums of the activations are multiplied with to start an accumulator; none for the float formats.
    pub fn factor(&self, isa: Isa, span: &Span) -> Option<i32> {
        let Kind::Integer(panels) = self.matrix().kind() else { return None };
        let bias = if matches!(isa, Isa::Avx512 | Isa::Amx) { -128 } else { 0 };
        Some(if span.plain(isa) || panels.signed { bias } else { -panels.fold })
    }
}

/// Rows that products share, and where they lie once they are arranged.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    /// `[n][cols]`.
    x: *const f32,
    len: usize,
    pub n: usize,
    /// As the integer formats read them; no columns where none does.
    pub view: View,
    /// As the float formats read them, where one does.
    pub floats: Option<(Groups, *mut f32)>,
}

// SAFETY: as a job; each worker writes the places of its own blocks and columns only, and none while products are computed.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// The rows of `x`, which lie nowhere else yet.
    pub fn new(x: &[f32], n: usize) -> Self {
        let groups = Groups { n, size: 1, tail: 0 };
        let (q, d, sums) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let view = View { groups, first: 0, cols: 0, q, d, sums };
        Self { x: x.as_ptr(), len: x.len(), n, view, floats: None }
    }

    /// The rows.
    pub fn values(&self) -> &[f32] {
        // SAFETY: the call that the span is of borrows them.
        unsafe { std::slice::from_raw_parts(self.x, self.len) }
    }

    /// Their columns.
    pub fn cols(&self) -> usize {
        self.len / self.n
    }

    /// Divides the rows into groups as a matrix of this kind reads them.
    pub fn read_by(&mut self, kind: Kind, isa: Isa) {
        self.view.groups = Groups::integer(isa, self.n);
        match kind {
            Kind::Integer(_) => self.view.cols = self.cols(),
            Kind::Float(_) => self.floats = Some((Groups::vector(isa, self.n), std::ptr::null_mut())),
        }
    }

    /// Whether panels are unpacked to plain bytes.
    pub fn plain(&self, isa: Isa) -> bool {
        self.view.groups.size > tile_rows(isa)
    }

    /// Whether panels are unpacked first.
    pub fn many(&self, isa: Isa) -> bool {
        self.plain(isa) || self.view.groups.count() > 1
    }
}
