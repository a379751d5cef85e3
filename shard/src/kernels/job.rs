//! One matrix of a product call, as the threads that share the work see it.

use super::Matrix;

/// A target as the workers see it.
#[derive(Clone, Copy)]
pub(crate) struct Job {
    pub matrix: *const Matrix,
    pub out: *mut f32,
    /// Units of work before this job and the panels of each unit.
    pub first_unit: usize,
    pub unit: usize,
    pub starts: *const i32,
}

// SAFETY: a job is filled and used inside one call of `matmul`, whose borrows outlive it; between calls it is cleared.
unsafe impl Send for Job {}
// SAFETY: as above; workers write disjoint parts of `out`.
unsafe impl Sync for Job {}
