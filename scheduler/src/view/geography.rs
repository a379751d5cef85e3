//! How far nodes are from each other where no node has measured it.

/// Region-to-region round trips assumed where nothing was measured.
#[derive(Clone, PartialEq, Debug)]
pub struct Geography {
    pub(super) regions: usize,
    pub(super) base_ms: Vec<f64>,
    /// Hops priced around the viewer; see [`Geography::around`].
    pub(super) unmeasured_ms: Option<f64>,
}

impl Geography {
    /// `base_ms[from * regions + to]`; `None` unless it is square and all finite and non-negative.
    pub fn new(regions: usize, base_ms: Vec<f64>) -> Option<Self> {
        let fits = base_ms.len() == regions * regions && regions > 0;
        (fits && base_ms.iter().all(|ms| ms.is_finite() && *ms >= 0.0)).then_some(Self {
            regions,
            base_ms,
            unmeasured_ms: None,
        })
    }

    /// One region, `ms` apart.
    pub fn flat(ms: f64) -> Self {
        let ms = if ms.is_finite() { ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![ms], unmeasured_ms: None }
    }

    /// No map: every node lies half of its measured round trip away from the viewer, `unmeasured_ms` when there is none,
    /// and two others as far from each other as the way past the viewer. That bounds what no node has measured from
    /// above (the triangle) and is exact to the viewer; no node's claim about its own position counts.
    pub fn around(unmeasured_ms: f64) -> Self {
        let ms = if unmeasured_ms.is_finite() { unmeasured_ms.max(0.0) } else { 0.0 };
        Self { regions: 1, base_ms: vec![0.0], unmeasured_ms: Some(ms) }
    }
}
