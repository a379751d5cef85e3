//! From visit to visit: what a request does until it ends.

use scheduler::recover::{Failure, Options, Recovery, SILENCE_MS};
use scheduler::{Millis, Segment};

use super::choose::{Choice, Question};
use super::{Event, REGRET_EVERY, Run};
use crate::policy::Policy;
use crate::world::{VISIT_MS, id, index};

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
            machine.work.count(self.now, true);
            if index(segment.node) < self.world.nodes {
                self.outcome.peak =
                    self.outcome.peak.max(f64::from(machine.work.sessions) / machine.lanes as f64);
            }
        }
        self.note_spread();
    }

    /// Where the machines that hold layers are full on average, how much fuller is the fullest?
    fn note_spread(&mut self) {
        let holders = self.world.machines[..self.world.nodes].iter().filter(|m| m.up && !m.held.is_empty());
        let (mut sum, mut most, mut count) = (0.0, 0f64, 0.0);
        for machine in holders {
            let load = f64::from(machine.work.sessions) / machine.lanes as f64;
            (sum, most, count) = (sum + load, most.max(load), count + 1.0);
        }
        if sum >= count && sum > 0.0 {
            self.outcome.spread.push(most * count / sum);
        }
    }

    fn release(&mut self, request: usize) {
        let live = &self.live[request];
        for segment in &live.segments {
            match self.running.get_mut(&(live.requester, segment.node)) {
                Some(count) if *count > 0 => {
                    *count -= 1;
                    self.world.machines[index(segment.node)].work.count(self.now, false);
                }
                _ => self.outcome.violations.unbalanced += 1,
            }
        }
    }

    /// Starts the current step from the first stage, under a new attempt.
    pub(super) fn restart(&mut self, request: usize) {
        let live = &mut self.live[request];
        live.attempt += 1;
        live.stage = 0;
        let (from, attempt) = (live.requester, live.attempt);
        let to = index(live.segments[0].node);
        self.travel(from, to, 0, request, attempt);
    }

    /// To the next stage with the activations of `tokens` tokens; to and from the requester go token ids only.
    fn travel(&mut self, from: usize, to: usize, tokens: u32, request: usize, attempt: u32) {
        if let Some(mut near) = self.world.near.take() {
            near.meet(&self.world, from, to);
            self.world.near = Some(near);
        }
        let asked = std::mem::take(&mut self.live[request].delay_ms);
        let hop = self.world.hop_ms(from, to) * (1.0 + self.scenario.hardware.jitter * self.chance.unit());
        let ms = asked + hop + self.world.transfer_ms(from, to, tokens);
        self.at(self.now + ms, Event::Reach { request, attempt });
    }

    pub(super) fn reach(&mut self, request: usize, attempt: u32) {
        let live = &self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        if live.stage == live.segments.len() {
            return self.token(request);
        }
        let at = index(live.segments[live.stage].node);
        if !self.world.machines[at].up {
            return self.at(self.now + SILENCE_MS as f64, Event::Lost { request, attempt });
        }
        self.world.machines[at].load += 1;
        self.servers[at].queue.push_back((request, attempt, self.now));
        self.serve(at);
    }

    fn serve(&mut self, at: usize) {
        while self.servers[at].serving.len() < self.world.machines[at].lanes {
            let Some((request, attempt, since)) = self.servers[at].queue.pop_front() else { return };
            self.world.machines[at].work.waited_ms += self.now - since;
            let live = &self.live[request];
            if live.attempt != attempt || live.over {
                self.world.machines[at].load -= 1;
                continue;
            }
            let tokens = live.lacks(live.stage);
            let ms = self.world.visit_ms(at, live.segments[live.stage].layers.len(), tokens);
            self.servers[at].serving.push((request, attempt));
            self.world.machines[at].work.served_ms += ms;
            self.servers[at].visits += 1;
            let boot = self.servers[at].boot;
            if tokens == 1 && self.policy == Policy::Ours {
                let layers = f64::from(live.segments[live.stage].layers.len());
                let each = (ms - VISIT_MS) / layers;
                self.chooser.view.observe_speed(id(at), Millis(self.now as u64), each);
            }
            self.at(self.now + ms, Event::Served { at, boot, request, attempt });
        }
    }

    pub(super) fn served(&mut self, at: usize, boot: u64, request: usize, attempt: u32) {
        if self.servers[at].boot != boot {
            return;
        }
        self.servers[at].serving.retain(|visit| *visit != (request, attempt));
        self.world.machines[at].load -= 1;
        self.serve(at);
        let live = &mut self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        live.have[live.stage] = live.known;
        live.stage += 1;
        let (to, tokens) = match live.segments.get(live.stage) {
            Some(segment) => (index(segment.node), live.lacks(live.stage)),
            None => (live.requester, 0),
        };
        self.travel(at, to, tokens, request, attempt);
    }

    fn token(&mut self, request: usize) {
        let now = self.now;
        let live = &mut self.live[request];
        let ordered = live.have.iter().all(|have| *have == live.known);
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

    pub(super) fn lost(&mut self, request: usize, attempt: u32) {
        let live = &mut self.live[request];
        if live.attempt != attempt || live.over {
            return;
        }
        live.crashed = true;
        let stage = live.stage.min(live.segments.len() - 1);
        let node = live.segments[stage].node;
        live.failed.push(node);
        self.chooser.view.snub(Millis(self.now as u64), node);
        // Covers were chosen segment by segment; after a tiled one the indices have moved, so they are used once.
        let covers = std::mem::take(&mut live.covers);
        let cover = covers.into_iter().find(|cover| cover.index == stage).map(|cover| cover.segments);
        let options = Options { shadow: None, cover: cover.unwrap_or_default() };
        match live.budget.next(Failure::Closed, &options, true) {
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
            if further > 0.0 {
                self.outcome.each_ms.push((live.times.last - live.times.began - first) / further);
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
