//! Passes of executors whose results come back to the host item by item.

use super::{
    Buffers, Capacity, Executor, Gave, Item, Pass, Workspace,
    batch::{Span, admit, refuse_non_finite},
};
use crate::Result;

/// The results of a pass, one list per item.
pub(super) struct HostBuffers {
    capacity: Capacity,
    gave: Gave,
    results: Vec<Vec<f32>>,
}

impl HostBuffers {
    /// For passes up to `capacity`.
    pub fn new(capacity: Capacity) -> Self {
        Self { capacity, gave: Gave::Rows, results: Vec::new() }
    }
}

impl Buffers for HostBuffers {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn given(&self, gave: Gave, index: usize) -> &[f32] {
        if self.gave == gave { self.results.get(index).map_or(&[], Vec::as_slice) } else { &[] }
    }

    fn clear(&mut self) {
        self.results.clear();
    }
}

/// One pass of `executor`: admits the items, has `each` compute them one after the other, and advances their states when all of
/// them succeeded. `each` gives the wanted rows of its item.
pub(super) fn pass_each<E: Executor + ?Sized>(
    executor: &E,
    ws: &mut Workspace,
    pass: Pass<'_>,
    items: &mut [Item<'_>],
    mut each: impl FnMut(&mut Item<'_>, Span, Gave) -> Result<Vec<f32>>,
) -> Result<()> {
    ws.clear();
    let buffers: &mut HostBuffers = ws.buffers()?;
    let mut spans = Vec::with_capacity(items.len());
    admit(executor, buffers.capacity, pass, items, &mut spans)?;
    let gave = Gave::by(executor, pass);
    let mut results = Vec::with_capacity(items.len());
    for (item, span) in items.iter_mut().zip(&spans) {
        let result = each(item, *span, gave)?;
        refuse_non_finite(&result, "what a pass gives")?;
        results.push(result);
    }
    items.iter_mut().zip(&spans).for_each(|(item, span)| item.state.advance(span.rows));
    (buffers.gave, buffers.results) = (gave, results);
    Ok(())
}
