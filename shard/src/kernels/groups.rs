//! How rows of activations are divided into groups, each as many as one call of a tile kernel takes, and where they lie.

use super::{Isa, amx, panel::BLOCK};

/// How rows are divided into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Groups {
    /// Rows in all.
    pub n: usize,
    /// Rows of a full group.
    pub size: usize,
    /// Places of the last group if it is not full, zero rows included; 0 when all are full.
    pub tail: usize,
}

/// Rows that the vector kernel takes at once.
pub(crate) fn tile_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 | Isa::Amx => 8,
        _ => 4,
    }
}

impl Groups {
    /// Groups of the vector kernel.
    pub fn vector(isa: Isa, n: usize) -> Self {
        Self::of(n, tile_rows(isa))
    }

    /// Groups of the integer kernels: of the tile unit where it pays.
    pub fn integer(isa: Isa, n: usize) -> Self {
        if isa == Isa::Amx && n > tile_rows(isa) { Self::of(n, amx::ROWS) } else { Self::vector(isa, n) }
    }

    fn of(n: usize, size: usize) -> Self {
        let rest = n % size;
        // As many places as the smallest kernel that takes the rest.
        let tail = match rest {
            0..=4 => rest,
            5 | 6 => 6,
            rest => rest.next_power_of_two(),
        };
        Self { n, size, tail }
    }

    /// Number of groups.
    pub fn count(&self) -> usize {
        self.n.div_ceil(self.size)
    }

    /// Places of group `g`.
    pub fn places(&self, g: usize) -> usize {
        if (g + 1) * self.size <= self.n { self.size } else { self.tail }
    }

    /// Rows of group `g`.
    pub fn rows(&self, g: usize) -> usize {
        self.size.min(self.n - g * self.size)
    }

    /// Places of all groups.
    pub fn total(&self) -> usize {
        self.n / self.size * self.size + self.tail
    }
}

/// Pointers to activations, shared by the workers.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub groups: Groups,
    /// Blocks of all places before those of the first group.
    pub first: usize,
    pub cols: usize,
    pub q: *mut i8,
    pub d: *mut f32,
    pub sums: *mut f32,
}

impl View {
    /// Blocks of all places.
    pub fn blocks(&self) -> usize {
        self.groups.total() * (self.cols / BLOCK)
    }
}
