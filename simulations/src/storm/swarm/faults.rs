//! What goes wrong, and how it ends: faults, healing, and the last request of everybody.

use super::{ASKS, BOUND_MS, Body, Fault, Happening, Machine, SWEEP_MS, Swarm, id};
use crate::storm::stage::{KEEP_MS, Stage};
use crate::storm::swarm::asker::Turn;

impl Swarm {
    pub(super) fn fault(&mut self, fault: Fault) {
        if self.healed && !matches!(fault, Fault::Restart { .. }) {
            return;
        }
        match fault {
            Fault::Crash { at, silent } if self.machines[at].health.up => {
                let now = self.now;
                let fresh = {
                    let stage = &self.machines[at].stage;
                    Stage::new(stage.held.clone(), stage.slots(), stage.kv_room())
                };
                let machine = &mut self.machines[at];
                machine.health.up = false;
                machine.health.boot += 1;
                machine.health.busy_until = now;
                machine.stage = fresh;
                for to in (0..self.machines.len()).filter(|_| !silent) {
                    if let Some(way) = self.net.way_ms(at, to, |_| true)
                        && !self.net.is_cut(at, to)
                        && to != at
                    {
                        let body = Box::new(Body::Lost { node: id(at) });
                        self.at(now + way as u64, Happening::Deliver { to, body });
                    }
                }
            }
            Fault::Crash { .. } => {}
            Fault::Restart { at } => {
                self.machines[at].health.up = true;
                self.announce(at);
            }
            Fault::Freeze { at, ms } => self.machines[at].health.frozen_until = self.now + ms,
            Fault::Slow { at, times } => self.machines[at].health.slow = times,
            Fault::Cut { inside, outward, inward } => self.net.cut(inside, outward, inward),
        }
    }

    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.net.heal();
        self.options.weather.gossip_loss = 0.0;
        self.options.moves = false;
        for at in 0..self.machines.len() {
            let machine = &mut self.machines[at];
            machine.health.up = true;
            machine.health.slow = 1;
            machine.moving.withdrawn = None;
            machine.health.frozen_until = machine.health.frozen_until.min(self.now);
            machine.health.busy_until = machine.health.busy_until.min(self.now + 1_000);
            self.announce(at);
        }
    }

    /// Everybody asks once more, and must be served whole.
    pub(super) fn must(&mut self) {
        for at in self.options.size.nodes..self.machines.len() {
            let history =
                (0..self.options.demand.tokens.0).map(|_| self.chance.below(50_000) as u32).collect();
            let must = if self.requester(at).feasible() { ASKS } else { 0 };
            self.requester(at).ask(Turn { history, left: 0, must }, 0);
        }
        self.at(self.now + SWEEP_MS, Happening::Settled);
    }

    pub(super) fn settled(&mut self) {
        let idle = |machine: &Machine| machine.asker.live.is_empty() && machine.asker.waiting.is_empty();
        let quiet = self.due == 0 && self.machines.iter().all(idle);
        let late = self.now >= self.options.heal_ms + BOUND_MS;
        self.checks.that(quiet || !late, || format!("a request is alive {BOUND_MS} ms after healing"));
        if quiet || late {
            self.closing = true;
            self.at(self.now + KEEP_MS * 5 / 4 + 2 * SWEEP_MS, Happening::Final);
        } else {
            self.at(self.now + SWEEP_MS, Happening::Settled);
        }
    }
}
