//! What a pass asks of experts that are not here.

use super::super::{ExpertWork, RemoteExperts, batch::refuse_non_finite};
use crate::{Error, Result, kernels::Cpu};

/// Gathers the visits of one pass to experts elsewhere, and hands out what they give.
#[derive(Default)]
pub(super) struct Elsewhere {
    remote: Option<Box<dyn RemoteExperts>>,
    visits: Vec<(u32, u32)>,
    rows: Vec<f32>,
    /// For each row of the pass its place among `rows`, plus one.
    places: Vec<u32>,
    asked: Asked,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Asked {
    #[default]
    Nothing,
    /// Its outputs are taken from this value on.
    Waits,
    Given(usize),
}

impl Elsewhere {
    /// From now on asks `remote`.
    pub fn ask_of(&mut self, remote: Box<dyn RemoteExperts>) {
        self.remote = Some(remote);
    }

    /// Nothing is gathered of a pass of `rows` rows.
    pub fn begin(&mut self, rows: usize) {
        self.visits.clear();
        self.rows.clear();
        self.places.clear();
        self.places.resize(rows, 0);
        self.asked = Asked::Nothing;
    }

    /// `expert` visits row `row` of the pass, which is `x`; times `weight` where experts read weighted rows.
    pub fn gather(&mut self, cpu: &Cpu, (expert, row): (u32, usize), x: &[f32], weight: Option<f32>) {
        let new = self.rows.len() / x.len();
        let place = match (weight, self.places[row]) {
            (None, place) if place > 0 => place as usize - 1,
            (None, _) => {
                self.rows.extend_from_slice(x);
                self.places[row] = new as u32 + 1;
                new
            }
            (Some(weight), _) => {
                self.rows.extend_from_slice(x);
                cpu.scale(&mut self.rows[new * x.len()..], weight);
                new
            }
        };
        self.visits.push((expert, place as u32));
    }

    /// Asks for what was gathered, if anything was.
    pub fn ask(&mut self, layer: u32) -> Result<()> {
        if self.visits.is_empty() {
            return Ok(());
        }
        let lacking = || {
            Error::invalid(format!(
                "not all experts of layer {layer} are here, and no node was named for the others"
            ))
        };
        let remote = self.remote.as_mut().ok_or_else(lacking)?;
        self.asked = Asked::Waits;
        remote.ask(ExpertWork { layer, visits: &self.visits, rows: &self.rows })
    }

    /// The outputs of the next `visits` visits, `[visits][width]`.
    pub fn next(&mut self, visits: usize, width: usize) -> Result<&[f32]> {
        let all = self.visits.len() * width;
        let odd = || Error::invalid("outputs of experts that were not asked for");
        let remote = self.remote.as_mut().ok_or_else(odd)?;
        let outputs = remote.take()?;
        let at = match self.asked {
            Asked::Given(at) => at,
            Asked::Waits if outputs.len() == all => {
                refuse_non_finite(outputs, "the outputs of experts elsewhere")?;
                0
            }
            _ => return Err(odd()),
        };
        self.asked = Asked::Given(at + visits * width);
        outputs.get(at..at + visits * width).ok_or_else(odd)
    }
}
