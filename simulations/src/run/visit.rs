//! From visit to visit: what a request does until it ends.

use std::collections::VecDeque;

use scheduler::capability::Holding;
use scheduler::recover::{Failure, Options, Recovery, SILENCE_MS};
use scheduler::{LayerRange, Millis, ModelId, Segment};

use super::choose::{Choice, Question};
use super::{Event, Line, REGRET_EVERY, Run, Visit};
use crate::policy::Policy;
use crate::world::{VISIT_MS, id, index};

/// Rows of a pass: a chunk of a prompt, and steps beside it.
const PASS_ROWS: u32 = 128;

/// A crowd has gone when fewer sessions than this share of the most are left.
const CROWD_LASTS: f64 = 0.8;

impl Run<'_> {
    /// Finds a pipeline for the rest of a request, or gives it up.
    pub(super) fn route_again(&mut self, request: usize) {
        self.release(request);
        let question = Question {
            scenario: self.scenario,
            policy: self.policy,
            world: &self.world,
            now: self.now,
            request,
            live: &self.live[request],
        };
        let Some(Choice { pipeline, covers, asked_ms }) =
            self.chooser.choose(&question, &mut self.placed, &mut self.chance)
        else {
            self.live[request].segments.clear();
            return self.end(request, false);
        };
        let (not_held, abroad) = question.breaks(&pipeline);
        self.outcome.violations.not_held += not_held;
        self.outcome.violations.ends_abroad += u64::from(abroad);
        let sampled = request.is_multiple_of(REGRET_EVERY) && self.world.nodes <= 2_000;
        if sampled && question.live.attempt == 0 {
            self.outcome.regret.extend(question.regret(&pipeline));
        }
        let live = &mut self.live[request];
        live.delay_ms += asked_ms;
        let kept = |segment: &Segment| {
            live.segments.iter().position(|old| old == segment).map_or(0, |at| live.have[at])
        };
        live.have = pipeline.segments().iter().map(kept).collect();
        live.segments = pipeline.segments().to_vec();
        live.covers = covers;
        self.occupy(request);
        self.restart(request);
    }

    pub(super) fn occupy(&mut self, request: usize) {
        let live = &self.live[request];
        for segment in &live.segments {
            *self.running.entry((live.requester, segment.node)).or_insert(0) += 1;
            let machine = &mut self.world.machines[index(segment.node)];
            machine.work.count(true);
            if index(segment.node) < self.world.nodes {
                self.outcome.peak =
                    self.outcome.peak.max(f64::from(machine.work.sessions) / machine.lanes as f64);
            }
        }
        self.note_spread();
    }

    /// Where the machines that hold layers are full on average, how much fuller is the fullest? When a crowd has gone, what
    /// is left where says nothing of how requests were spread.
    fn note_spread(&mut self) {
        let holders = self.world.machines[..self.world.nodes].iter().filter(|m| m.up && !m.held.is_empty());
        let (mut sum, mut most, mut count) = (0.0, 0f64, 0.0);
        for machine in holders {
            let load = f64::from(machine.work.sessions) / machine.lanes as f64;
            (sum, most, count) = (sum + load, most.max(load), count + 1.0);
        }
        self.fullest = sum.max(self.fullest);
        if sum >= count && sum > 0.0 && sum >= CROWD_LASTS * self.fullest {
            self.outcome.spread.push(most * count / sum);
        }
    }

    pub(super) fn release(&mut self, request: usize) {
        let live = &self.live[request];
        for segment in &live.segments {
            match self.running.get_mut(&(live.requester, segment.node)) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    self.world.machines[index(segment.node)].work.count(false);
                }
                _ => self.outcome.violations.unbalanced += 1,
            }
        }
    }

    /// Starts the current step from the first stage, under a new attempt.
    pub(super) fn restart(&mut self, request: usize) {
        let now = self.now;
        let live = &mut self.live[request];
        live.attempt += 1;
        let line = |stage: usize| Line {
            free: now,
            last: now,
            sent: if stage < live.segments.len() { live.has(stage) } else { 0 },
        };
        live.lines = (0..=live.segments.len()).map(line).collect();
        let (requester, known, attempt) = (live.requester, live.known, live.attempt);
        let chunk = self.world.engine.chunk(known);
        let mut from = live.has(0);
        while from < known {
            let to = known.min(from + chunk);
            self.travel(requester, Visit { request, attempt, stage: 0, to, since: now });
            from = to;
        }
    }

    /// From a machine to the stage of a visit with the activations that were not sent yet; to and from the requester go token ids only.
    fn travel(&mut self, from: usize, visit: Visit) {
        let live = &self.live[visit.request];
        let (to, stages) = (visit.stage, live.segments.len());
        let to = live.segments.get(to).map_or(live.requester, |segment| index(segment.node));
        if self.is_cut(from, to) {
            let Visit { request, attempt, stage, .. } = visit;
            // Behind the last stage it is that one of which nothing comes.
            let stage = stage.min(stages - 1);
            self.chooser.part(from, to, self.live[request].requester, self.now);
            return self.at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt, stage, cut: true });
        }
        if let Some(mut near) = self.world.near.take() {
            near.meet(&self.world, from, to);
            self.world.near = Some(near);
        }
        let hop = self.world.hop_ms(from, to) * (1.0 + self.scenario.hardware.jitter * self.chance.unit());
        let live = &mut self.live[visit.request];
        let asked_ms = std::mem::take(&mut live.delay_ms);
        let line = &mut live.lines[visit.stage];
        let carried = if (1..stages).contains(&visit.stage) { visit.to.saturating_sub(line.sent) } else { 0 };
        line.sent = line.sent.max(visit.to);
        // What is sent while the line is taken waits, and what travels faster does not overtake.
        line.free = line.free.max(self.now + asked_ms) + self.world.transfer_ms(from, to, carried);
        line.last = line.last.max(line.free + hop);
        let when = line.last;
        self.at(when, Event::Reach { visit });
    }

    pub(super) fn reach(&mut self, visit: Visit) {
        let Visit { request, attempt, stage, .. } = visit;
        let live = &self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        if stage == live.segments.len() {
            return self.token(request);
        }
        let at = index(live.segments[stage].node);
        if !self.world.machines[at].up {
            return self
                .at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt, stage, cut: false });
        }
        self.servers[at].queue.push_back(Visit { since: self.now, ..visit });
        self.serve(at);
    }

    /// Begins passes while the machine has hands free.
    fn serve(&mut self, at: usize) {
        let batches = self.world.engine.batches;
        let at_once = if batches { 1 } else { self.world.machines[at].lanes };
        while self.servers[at].passes.len() < at_once {
            let parts = if batches { self.batch(at) } else { self.alone(at) };
            if parts.is_empty() {
                return;
            }
            let layers: Vec<(LayerRange, u32)> =
                parts.iter().map(|(visit, rows)| (self.segment(visit).layers, *rows)).collect();
            let ms = self.world.pass_ms(at, &layers);
            for ((visit, rows), (layers, _)) in parts.iter().zip(&layers) {
                let work = &mut self.world.machines[at].work;
                work.waited_ms += self.now - visit.since;
                work.visits += 1;
                self.servers[at].visits += 1;
                if *rows == 1 && self.policy == Policy::Ours {
                    let each = (ms - VISIT_MS) / f64::from(layers.len()) / self.crowded(at);
                    self.chooser.view.observe_speed(id(at), Millis(self.now as u64), each);
                }
            }
            let server = &mut self.servers[at];
            server.begun += 1;
            let (boot, pass) = (server.boot, server.begun);
            server.passes.insert(pass, parts);
            self.at(self.now + ms, Event::Served { at, boot, pass });
        }
    }

    /// How many times longer a step takes than alone, by the sessions that a machine last announced.
    fn crowded(&self, at: usize) -> f64 {
        let known = self.chooser.view.get(id(at)).and_then(|known| known.holding(ModelId::default()));
        let others =
            |holding: &Holding| f64::from(holding.active.saturating_sub(1)) / f64::from(holding.batch_knee);
        known.map_or(1.0, |holding| 1.0 + others(holding) * f64::from(u8::from(self.world.engine.batches)))
    }

    fn segment(&self, visit: &Visit) -> Segment {
        self.live[visit.request].segments[visit.stage]
    }

    /// Rows that a visit still needs; none where it is over or the stage has them.
    fn rows(&self, visit: &Visit) -> u32 {
        let live = &self.live[visit.request];
        let goes_on = live.attempt == visit.attempt && !live.over;
        if goes_on { visit.to.saturating_sub(live.has(visit.stage)) } else { 0 }
    }

    /// The next visit that waits, all of it.
    fn alone(&mut self, at: usize) -> Vec<(Visit, u32)> {
        while let Some(visit) = self.servers[at].queue.pop_front() {
            let rows = self.rows(&visit);
            if rows > 0 {
                return vec![(visit, rows)];
            }
        }
        Vec::new()
    }

    /// What waits, in its order: of a request one visit at a time and at most a chunk of it, [`PASS_ROWS`] in all.
    fn batch(&mut self, at: usize) -> Vec<(Visit, u32)> {
        let mut parts: Vec<(Visit, u32)> = Vec::new();
        let mut waits = VecDeque::new();
        let mut room = PASS_ROWS;
        for visit in std::mem::take(&mut self.servers[at].queue) {
            let rows = self.rows(&visit);
            let rows = rows.min(self.world.engine.chunk(rows));
            let another =
                parts.iter().any(|(part, _)| (part.request, part.stage) == (visit.request, visit.stage));
            if rows == 0 {
                continue;
            }
            if another || rows > room {
                waits.push_back(visit);
            } else {
                room -= rows;
                parts.push((visit, rows));
            }
        }
        self.servers[at].queue = waits;
        parts
    }

    pub(super) fn served(&mut self, at: usize, boot: u64, pass: u64) {
        if self.servers[at].boot != boot {
            return;
        }
        let parts = self.servers[at].passes.remove(&pass).unwrap_or_default();
        let mut rest = Vec::new();
        for (visit, rows) in parts {
            let live = &mut self.live[visit.request];
            if live.attempt != visit.attempt || live.over {
                continue;
            }
            let has = live.has(visit.stage) + rows;
            live.have[visit.stage] = has;
            if has < visit.to {
                rest.push(Visit { since: self.now, ..visit });
            }
            let stage = visit.stage + 1;
            let last = stage == live.segments.len();
            if !last || has == live.known {
                self.travel(at, Visit { stage, to: has, ..visit });
            }
        }
        // The rest of a visit goes before what came later.
        rest.into_iter().rev().for_each(|visit| self.servers[at].queue.push_front(visit));
        self.serve(at);
    }

    fn token(&mut self, request: usize) {
        let now = self.now;
        let live = &mut self.live[request];
        // A stage whose machine crashed behind its output has nothing left.
        let ordered = live.have.iter().all(|have| *have == live.known || *have == 0);
        self.outcome.violations.order += u64::from(!ordered);
        live.known += 1;
        live.budget.step_done();
        match live.times.first {
            None => live.times.first = Some(now - live.times.began),
            Some(_) => live.times.stall = live.times.stall.max(now - live.times.last),
        }
        live.times.last = now;
        if let Some(count) = self.outcome.tokens_by_second.get_mut((now / 1_000.0) as usize) {
            *count += 1;
            self.outcome.tokens += 1;
        }
        if live.known - live.tokens.0 >= live.tokens.1 {
            return self.end(request, true);
        }
        // The token goes straight into the next step: it is at the requester already.
        self.restart(request);
    }

    pub(super) fn lost(&mut self, (request, attempt, stage): (usize, u32, usize), cut: bool) {
        let live = &mut self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        live.crashed = true;
        let node = live.segments[stage].node;
        // Two machines that are apart are noted as such: neither is worse for others.
        if !cut {
            live.failed.push(node);
            self.chooser.view.snub(Millis(self.now as u64), node);
        }
        // Covers were chosen segment by segment; after a tiled one the indices have moved, so they are used once.
        let covers = std::mem::take(&mut live.covers);
        let cover = covers.into_iter().find(|cover| cover.index == stage).map(|cover| cover.segments);
        let options = Options { shadow: None, cover: cover.unwrap_or_default() };
        let failure = if cut { Failure::Misrouted } else { Failure::Closed };
        match live.budget.next(failure, &options, true) {
            Recovery::Switch(segments) => {
                self.release(request);
                let live = &mut self.live[request];
                let fresh = vec![0; segments.len()];
                live.segments.splice(stage..=stage, segments);
                live.have.splice(stage..=stage, fresh);
                self.occupy(request);
                self.restart(request);
            }
            Recovery::GiveUp(_) => self.end(request, false),
            _ => self.route_again(request),
        }
    }

    fn end(&mut self, request: usize, whole: bool) {
        if !self.live[request].segments.is_empty() {
            self.release(request);
        }
        let live = &mut self.live[request];
        live.segments.clear();
        live.over = true;
        if whole {
            self.outcome.requests.1 += 1;
            let further = f64::from(live.known - live.tokens.0 - 1);
            let first = live.times.first.unwrap_or(0.0);
            let each = (live.times.last - live.times.began - first) / further.max(1.0);
            if further > 0.0 {
                self.outcome.each_ms.push(each);
            }
            let (first_most, each_most) = self.scenario.demand.target;
            if first <= first_most && each <= each_most {
                self.outcome.good_tokens += u64::from(live.known - live.tokens.0);
            }
            self.outcome.first_ms.push(first);
            if live.crashed {
                self.outcome.stall_ms.push(live.times.stall);
            }
        } else {
            self.outcome.requests.2 += 1;
        }
    }
}
