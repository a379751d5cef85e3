//! Experts of a layer that another node computes.
//!
//! An executor that holds only some experts of its layers ([`super::load_experts`]) routes its rows as ever. What the experts
//! beyond its own give it asks through [`RemoteExperts`]: every expert's output comes by itself, never a sum, and a row
//! adds all of them in ascending order. So the bits are those of one machine that holds all experts.

use crate::Result;

/// Rows that experts of one layer are to compute.
#[derive(Clone, Copy, Debug)]
pub struct ExpertWork<'a> {
    /// Which layer of the model.
    pub layer: u32,
    /// Expert and row of every visit, experts ascending.
    pub visits: &'a [(u32, u32)],
    /// What they read, `[rows][width]`: as wide as a row of the model, or as [`crate::models::Experts::latent`] says.
    pub rows: &'a [f32],
}

/// What computes the experts that an executor lacks.
pub trait RemoteExperts: Send {
    /// Begins to compute `work`; the executor computes its own experts meanwhile.
    ///
    /// # Errors
    /// When the work cannot be handed out.
    fn ask(&mut self, work: ExpertWork<'_>) -> Result<()>;

    /// Waits for what was asked last: the output of every visit in the order of the visits, `[visits][width]`.
    ///
    /// # Errors
    /// When it does not come.
    fn take(&mut self) -> Result<&[f32]>;
}
