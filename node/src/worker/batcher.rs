//! Jobs into passes.
//!
//! Jobs that wait together for the same layers with the same rounding become one pass: the weights are read from memory
//! once for all of them, and every session gets the bits it would get alone. A session's own jobs keep their order.

use std::{collections::VecDeque, time::Instant};

use p2p::codec::{self, Wire};
use scheduler::session::MAX_DRAFT;
use shard::executor::{Capacity, Input, Item, Output, Pass, Workspace};

use super::{
    drafts::Drafts,
    ipc::{self, Ask, Body, Output as Told, Run, Tell, Want},
    kept::Key,
    load::Loaded,
    recent::Staged,
    session::{Admission, Held, LOGIT_ROWS, MAX_ITEMS, MAX_ROWS, Sessions, logit_rows},
};
use crate::{Error, Result};

/// A frame from the daemon.
pub(super) type Asked = (Ask, Vec<u8>);

/// The computing part of a worker.
pub(super) struct Batcher<'m> {
    pub(super) model: &'m Loaded,
    pub(super) sessions: Sessions<'m>,
    /// What it drafts for sessions of other workers.
    pub(super) drafts: Drafts<'m>,
    pub(super) workspaces: Vec<Workspace>,
    /// Incoming rows of a pass.
    pub(super) rows: Vec<f32>,
    /// Incoming tokens of a pass.
    pub(super) tokens: Vec<u32>,
    pub(super) logits: Vec<f32>,
    /// Sessions of the last pass.
    served: Vec<[u8; 16]>,
}

/// A job that goes into a pass.
pub(super) struct Going {
    pub(super) run: Run,
    pub(super) key: Key,
    pub(super) held: Held,
    pub(super) input: Staged,
    /// Rows of the input in front of the job's, which are computed again.
    pub(super) again: usize,
}

impl<'m> Batcher<'m> {
    /// An engine over `model`, with caches of at most `kv_bytes`.
    pub(super) fn new(model: &'m Loaded, kv_bytes: u64) -> Result<Self> {
        let rows = MAX_ROWS as usize;
        let capacity = Capacity { rows, items: MAX_ITEMS, logit_rows: LOGIT_ROWS };
        let workspaces =
            (0..model.stages.len()).map(|stage| model.workspace(stage, capacity)).collect::<Result<_>>()?;
        let sessions = Sessions::new(model, model.state_room(kv_bytes));
        let (rows, tokens) = (Vec::new(), Vec::new());
        let (drafts, logits, served) = (Drafts::new(model), Vec::new(), Vec::new());
        Ok(Self { model, sessions, drafts, workspaces, rows, tokens, logits, served })
    }

    /// Takes the jobs of the next pass out of `waiting`, whose first must be a job.
    ///
    /// Among the jobs up to the next frame that is none, the first of a session that had no part in the last pass leads
    /// (so a long prompt does not keep the others waiting), and the first of every other session for the same lane
    /// joins while there is room.
    pub(super) fn fold(&mut self, waiting: &mut VecDeque<Asked>) -> Vec<(Run, Vec<u8>)> {
        let runs =
            || waiting.iter().map_while(|(ask, _)| if let Ask::Run(run) = ask { Some(run) } else { None });
        let lead = runs().position(|run| !self.served.contains(&run.session)).unwrap_or(0);
        let Some(leader) = runs().nth(lead) else { return Vec::new() };
        let lane = self.sessions.lane(leader);
        let (mut rows, mut seen, mut taken) = (leader.rows, vec![leader.session], vec![lead]);
        let mut logits = logit_rows(leader);
        for (at, run) in runs().enumerate().filter(|_| lane.is_some()) {
            let joined = rows.saturating_add(run.rows);
            let fits = joined <= MAX_ROWS
                && taken.len() < MAX_ITEMS
                && logits + logit_rows(run) <= LOGIT_ROWS
                && self.sessions.lane(run) == lane;
            // A session's own jobs keep their order: what follows one that was seen stays behind it.
            if !seen.contains(&run.session) {
                seen.push(run.session);
                if fits {
                    rows = joined;
                    logits += logit_rows(run);
                    taken.push(at);
                }
            }
        }
        taken.sort_unstable();
        self.served.clear();
        let mut jobs = Vec::with_capacity(taken.len());
        for at in taken.into_iter().rev() {
            if let Some((Ask::Run(run), payload)) = waiting.remove(at) {
                self.served.push(run.session);
                jobs.push((run, payload));
            }
        }
        jobs.reverse();
        jobs
    }

    /// Computes jobs of one lane and tells what came of each, in their order.
    pub(super) fn run(&mut self, jobs: Vec<(Run, Vec<u8>)>, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
        let now = Instant::now();
        self.rows.clear();
        self.tokens.clear();
        let mut going = Vec::with_capacity(jobs.len());
        for (run, payload) in jobs {
            let body = match self.sessions.admit(&run, now) {
                Admission::Drop => {
                    tell(Tell::Dropped { job: run.job }, Vec::new());
                    continue;
                }
                Admission::NeedReplay(have) => Body::NeedReplay { have },
                Admission::Fail(why) => Body::Failed(why),
                Admission::Go { again } => {
                    let key = (ipc::session(run.session), run.layer);
                    let Some(held) = self.sessions.take(key) else { continue };
                    let again = again as usize;
                    match self.stage(&run, &held, &payload, again) {
                        Ok(input) => {
                            going.push(Going { run, key, held, input, again });
                            continue;
                        }
                        Err(error) => {
                            self.sessions.give(key, held);
                            Body::Failed(error.to_string())
                        }
                    }
                }
            };
            let layers =
                self.sessions.lane(&run).map_or((run.layer, run.layer + 1), |lane| ipc::pair(lane.0));
            tell(told(&run, layers, body, (0, 0)), Vec::new());
        }
        let (alone, going): (Vec<Going>, Vec<Going>) =
            going.into_iter().partition(|job| self.wants_rows(job));
        alone.into_iter().for_each(|job| self.all_rows(job, tell));
        let going = going.into_iter().filter_map(|job| self.shown(job, tell)).collect();
        self.pass(going, tell);
    }

    /// Puts the rows of a job where the pass finds them, behind the `again` rows that are kept.
    fn stage(&mut self, run: &Run, held: &Held, payload: &[u8], again: usize) -> Result<Staged> {
        let last = held.layers.end() == self.model.num_layers();
        match run.want {
            Want::Activations if last => {
                return Err(Error::usage("activations wanted after the head: ask for a sample"));
            }
            Want::Sample if !last => return Err(Error::usage("a token wanted before the last layer")),
            Want::Sample if self.sessions.conductor(ipc::session(run.session)).is_none() => {
                return Err(Error::usage("a token wanted of a session that does not conduct here"));
            }
            Want::Sample if !run.draft.0.is_empty() => {
                let draft = run.draft.0.len();
                if draft > MAX_DRAFT as usize || run.rows as usize != draft + 1 {
                    return Err(Error::usage(format!(
                        "a draft of {draft} tokens in a job of {} rows: it has one row more than the draft, and {MAX_DRAFT} \
                         drafted tokens at most",
                        run.rows
                    )));
                }
            }
            _ => {}
        }
        let rows = run.rows as usize;
        let Some(wire) = run.wire else {
            let ids = ipc::ids_from_bytes(payload).filter(|ids| ids.len() == rows);
            let ids = ids.ok_or_else(|| Error::usage(format!("{rows} token ids announced, others given")))?;
            let vocab = self.model.blueprint().vocab;
            if held.layers.start() != 0 || ids.iter().any(|&id| id as usize >= vocab) {
                return Err(Error::usage("token ids are for layer 0 and below the vocabulary's end"));
            }
            let start = self.tokens.len();
            self.tokens.extend_from_slice(held.recent.tokens(again));
            self.tokens.extend(ids);
            return Ok(Staged::Tokens(start..self.tokens.len()));
        };
        let wire = Wire::from_u8(wire).ok_or_else(|| Error::usage("activations of no known form"))?;
        if held.layers.start() == 0 {
            return Err(Error::usage("activations for layer 0: it takes token ids"));
        }
        if wire != Wire::Raw && wire != held.wires.0 {
            let why = format!("{wire} at a boundary where the session does not round so: send raw");
            return Err(Error::usage(why));
        }
        let start = self.rows.len();
        self.rows.extend_from_slice(held.recent.rows(again));
        codec::decode(wire, self.model.blueprint().hidden, rows, payload, &mut self.rows)
            .map_err(|error| Error::usage(error.to_string()))?;
        Ok(Staged::Rows(start..self.rows.len()))
    }

    /// One pass over all, or, if that fails, one each: a bad job must not take the others with it.
    fn pass(&mut self, mut going: Vec<Going>, tell: &mut dyn FnMut(Tell, Vec<u8>)) {
        if going.is_empty() {
            return;
        }
        let started = Instant::now();
        match self.compute(&mut going) {
            Ok(()) => {
                let spent = (started.elapsed().as_micros() as u64, going.len() as u32);
                for (index, mut job) in going.into_iter().enumerate() {
                    self.remember(&mut job);
                    let (body, payload) = self.result(index, &job);
                    tell(told(&job.run, ipc::pair(job.held.layers), body, spent), payload);
                    self.sessions.give(job.key, job.held);
                }
            }
            Err(error) if going.len() == 1 => {
                let spent = (started.elapsed().as_micros() as u64, 1);
                for job in going {
                    let body = Body::Failed(error.to_string());
                    tell(told(&job.run, ipc::pair(job.held.layers), body, spent), Vec::new());
                    self.sessions.give(job.key, job.held);
                }
            }
            Err(_) => going.into_iter().for_each(|job| self.pass(vec![job], tell)),
        }
    }

    /// Keeps the inputs of a pass into which the state does not go back.
    fn remember(&self, job: &mut Going) {
        if !self.model.blueprint().goes_back() {
            let (inputs, width) = ((&self.tokens[..], &self.rows[..]), self.model.blueprint().hidden);
            job.held.recent.keep(job.run.from + job.run.rows, &job.input, inputs, width);
        }
    }

    fn compute(&mut self, going: &mut [Going]) -> Result<()> {
        let (stage, layers) = (going[0].held.stage, going[0].held.layers);
        let rounding = going[0].held.rounding.clone();
        let top = self.candidates(going);
        let mut items: Vec<Item<'_>> = going
            .iter_mut()
            .map(|job| Item {
                state: &mut job.held.state,
                input: match &job.input {
                    Staged::Tokens(at) => Input::Tokens(&self.tokens[at.clone()]),
                    Staged::Rows(at) => Input::Activations(&self.rows[at.clone()]),
                },
                output: match job.run.want {
                    Want::Nothing => Output::None,
                    Want::Activations => Output::All,
                    Want::Sample if job.run.draft.0.is_empty() => Output::Last,
                    Want::Sample => Output::All,
                },
            })
            .collect();
        let pass = Pass { layers, rounding: &rounding, states: false, top };
        Ok(self.model.stages[stage].pass(&mut self.workspaces[stage], pass, &mut items)?)
    }

    /// How many of the largest logits are enough for all jobs that choose a token; 0 for all logits.
    fn candidates(&mut self, going: &[Going]) -> usize {
        let mut most = 0;
        for job in going.iter().filter(|job| job.run.want == Want::Sample) {
            let conductor = self.sessions.conductor(ipc::session(job.run.session));
            match conductor.and_then(|conductor| conductor.candidates()) {
                Some(count) => most = most.max(count),
                None => return 0,
            }
        }
        most
    }

    /// What the last pass gave for its job `index`.
    fn result(&mut self, index: usize, job: &Going) -> (Body, Vec<u8>) {
        let workspace = &self.workspaces[job.held.stage];
        match job.run.want {
            Want::Nothing => (Body::Nothing, Vec::new()),
            Want::Activations => {
                let mut payload = Vec::new();
                let (wire, width) = (job.held.wires.1, self.model.blueprint().hidden);
                let rows = &workspace.activations(index)[job.again * width..];
                match codec::encode(wire, width, rows, &mut payload) {
                    Ok(()) => (Body::Activations(wire as u8), payload),
                    Err(error) => (Body::Failed(error.to_string()), Vec::new()),
                }
            }
            Want::Sample => {
                let draft = &job.run.draft.0;
                // Without a draft the last row's alone are wanted.
                let again = if draft.is_empty() { 0 } else { job.again };
                let most = workspace.top(index).len() / (again + draft.len() + 1);
                let (vocab, width) = (self.model.blueprint().vocab, self.model.blueprint().hidden);
                if !workspace.spread_top(index, (most, vocab), &mut self.logits) {
                    self.logits.extend_from_slice(workspace.logits(index));
                }
                let position = (job.run.from + job.run.rows) as usize - draft.len();
                let chosen = self
                    .sessions
                    .conductor(ipc::session(job.run.session))
                    .ok_or_else(|| Error::usage("the session does not conduct here"))
                    .and_then(|conductor| {
                        let logits = &mut self.logits[again * vocab..];
                        let mut chosen = conductor.choose_all(logits, position, draft)?;
                        let states = workspace.states(index).get(again * width..);
                        let states = states.and_then(|states| states.get(..chosen.len() * width));
                        if let (Some(states), Some(last)) = (states, chosen.last_mut()) {
                            let from = position - 1;
                            last.foreseen = conductor.foresee((from, states), job.run.foresee.into());
                        }
                        let prompt = conductor.prompt(&chosen);
                        let payload =
                            if prompt.is_empty() { Vec::new() } else { ipc::prompt_to_bytes(&prompt)? };
                        Ok((Body::Sampled(chosen), payload))
                    });
                chosen.unwrap_or_else(|error| (Body::Failed(error.to_string()), Vec::new()))
            }
        }
    }
}

pub(super) fn told(run: &Run, layers: (u32, u32), body: Body, (compute_us, batched): (u64, u32)) -> Tell {
    Tell::Output(Told {
        job: run.job,
        session: run.session,
        epoch: run.epoch,
        attempt: run.attempt,
        layers,
        from: run.from,
        rows: run.rows,
        body,
        compute_us,
        batched,
    })
}

#[cfg(test)]
mod tests {
    use scheduler::SessionId;
    use shard::{
        quant,
        synthetic::{Family, Shape},
    };

    use super::*;
    use crate::worker::{
        Measure,
        ipc::{DraftIds, Load, Open, Threads},
        load::{Files, open_device},
    };

    fn load(layers: (u32, u32)) -> Loaded {
        let asked = asked(layers);
        Loaded::load(&asked, Files::default(), open_device(&asked).unwrap()).unwrap()
    }

    fn asked(layers: (u32, u32)) -> Load {
        Load {
            file: None,
            verify: false,
            model: Some([1; 32]),
            exact: Some(true),
            layers: vec![layers],
            context: 512,
            experts: None,
            threads: Threads { count: Some(1), ..Threads::default() },
            isa: None,
            device: ("cpu".into(), None),
            kv_bytes: u64::MAX,
            measure: Measure::Speed,
            draft_head: None,
            state_secret: None,
        }
    }

    fn bytes(session: u64) -> [u8; 16] {
        *SessionId::numbered(session).as_bytes()
    }

    fn open(engine: &mut Batcher<'_>, session: u64, layers: (u32, u32), rounding: &[u32]) {
        let open = Open {
            session: bytes(session),
            epoch: 1,
            layers,
            positions: 512,
            at: 0,
            wire: if rounding.is_empty() { Wire::Raw } else { Wire::Q8 } as u8,
            rounding: rounding.to_vec(),
            kind: "dense".into(),
            kept: Vec::new(),
            conduct: None,
        };
        engine.sessions.open(open, Vec::new(), Instant::now()).unwrap();
    }

    fn job(job: u64, session: u64, layer: u32, rows: u32) -> Asked {
        let session = bytes(session);
        let (want, draft) = (Want::Nothing, DraftIds::default());
        let run = Run {
            job,
            session,
            epoch: 1,
            attempt: 0,
            layer,
            from: 0,
            rows,
            wire: None,
            want,
            draft,
            foresee: 0,
        };
        (Ask::Run(run), Vec::new())
    }

    /// The jobs of each pass, by their numbers.
    fn passes(engine: &mut Batcher<'_>, mut waiting: VecDeque<Asked>) -> Vec<Vec<u64>> {
        let mut passes = Vec::new();
        while !waiting.is_empty() {
            match waiting.front() {
                Some((Ask::Run(_), _)) => {
                    let jobs = engine.fold(&mut waiting);
                    passes.push(jobs.iter().map(|(run, _)| run.job).collect());
                }
                _ => drop(waiting.pop_front()),
            }
        }
        passes
    }

    #[test]
    fn what_shares_a_pass_and_who_goes_first() {
        let model = load((0, 3));
        let mut engine = Batcher::new(&model, u64::MAX).unwrap();
        for session in [1, 2, 3] {
            open(&mut engine, session, (0, 2), &[]);
        }
        open(&mut engine, 3, (2, 3), &[]);
        open(&mut engine, 4, (0, 2), &[1]);
        open(&mut engine, 5, (0, 2), &[1, 3]);
        let mut check = |waiting: Vec<Asked>, expected: &[&[u64]]| {
            engine.served.clear();
            assert_eq!(passes(&mut engine, waiting.into()), expected);
        };
        // The same lane, until the rows are full.
        check(vec![job(0, 1, 0, 1), job(1, 2, 0, 200), job(2, 3, 0, 55)], &[&[0, 1, 2]]);
        check(vec![job(0, 1, 0, 1), job(1, 2, 0, 255), job(2, 3, 0, 1)], &[&[0, 1], &[2]]);
        // Rounding outside the range does not matter, inside it does.
        check(vec![job(0, 1, 0, 1), job(1, 4, 0, 1), job(2, 5, 0, 1)], &[&[0], &[1, 2]]);
        // A session's jobs keep their order, over its ranges too.
        check(vec![job(0, 1, 0, 1), job(1, 1, 0, 1), job(2, 2, 0, 1)], &[&[0, 2], &[1]]);
        check(vec![job(0, 3, 2, 1), job(1, 3, 0, 1), job(2, 1, 0, 1)], &[&[0], &[1, 2]]);
        // A long prompt lets others in after every chunk.
        let chunks = (0..4).map(|n| job(n, 1, 0, 256)).chain([job(9, 2, 0, 1), job(10, 2, 0, 1)]);
        check(chunks.collect(), &[&[0], &[9], &[1], &[10], &[2], &[3]]);
        // Nothing overtakes a frame that is no job; a job without a caller goes alone.
        let close = (Ask::Close { session: bytes(1), keep: Vec::new(), file: None }, Vec::new());
        check(vec![job(0, 1, 0, 1), close, job(1, 2, 0, 1)], &[&[0], &[1]]);
        check(vec![job(0, 77, 0, 1), job(1, 78, 0, 1)], &[&[0], &[1]]);
    }

    #[test]
    fn a_pass_has_a_bounded_number_of_jobs() {
        let model = load((0, 1));
        let mut engine = Batcher::new(&model, u64::MAX).unwrap();
        let sessions = MAX_ITEMS as u64 + 3;
        (0..sessions).for_each(|session| open(&mut engine, session, (0, 1), &[]));
        let jobs = (0..sessions).map(|session| job(session, session, 0, 1)).collect();
        let sizes: Vec<usize> = passes(&mut engine, jobs).iter().map(Vec::len).collect();
        assert_eq!(sizes, [MAX_ITEMS, 3]);
    }

    /// A session whose state is a recurrence goes back into its last pass if that was short, else to a checkpoint, says so, and gives the
    /// same rows from there.
    #[test]
    fn a_state_that_cannot_go_back_all_the_way_asks_for_what_it_lacks() {
        const HIDDEN: usize = 64;
        let shape = Shape {
            family: Family::Recurrent { interval: 2 },
            layers: 4,
            hidden: HIDDEN,
            heads: 4,
            kv_heads: 2,
            head_dim: 16,
            feed_forward: 96,
            vocab: 101,
            context: 512,
            tied: true,
            experts: None,
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let contents = shape.to_bytes(&quant::Q8_0, 9).unwrap();
        std::fs::write(file.path(), &contents).unwrap();
        let path = file.path().as_os_str().as_encoded_bytes().to_vec();
        let asked = Load { file: Some((path, contents.len() as u64, false)), ..asked((1, 3)) };
        let device = open_device(&asked).unwrap();
        let model =
            Loaded::load(&asked, Files { model: Some(file.reopen().unwrap()), ..Files::default() }, device)
                .unwrap();
        let mut engine = Batcher::new(&model, u64::MAX).unwrap();
        open(&mut engine, 1, (1, 3), &[]);
        let mut rows = |from: u32, rows: u32| {
            let value = |i: u32| ((from * HIDDEN as u32 + i) * 37 % 101) as f32 / 50.0 - 1.0;
            let values: Vec<f32> = (0..rows * HIDDEN as u32).map(value).collect();
            let mut payload = Vec::new();
            codec::encode(Wire::Raw, HIDDEN, &values, &mut payload).unwrap();
            let (Ask::Run(run), _) = job(0, 1, 1, rows) else { panic!("no job") };
            let run = Run { from, wire: Some(Wire::Raw as u8), want: Want::Activations, ..run };
            let mut given = None;
            engine.run(vec![(run, payload)], &mut |tell, payload| given = Some((tell, payload)));
            match given {
                Some((Tell::Output(Told { body: Body::Activations(_), .. }), payload)) => Ok(payload),
                Some((Tell::Output(Told { body: Body::NeedReplay { have }, .. }), _)) => Err(have),
                other => panic!("{other:?}"),
            }
        };
        rows(0, 200).unwrap();
        rows(200, 100).unwrap();
        let (expected, row) = (rows(300, 20).unwrap(), HIDDEN * size_of::<f32>());
        for _ in 0..2 {
            assert!(rows(310, 10).unwrap() == expected[10 * row..], "ten rows of the last pass come again");
        }
        rows(320, 100).unwrap();
        assert_eq!(rows(400, 10), Err(320), "the last pass was too long to be kept");
        assert_eq!(rows(310, 10), Err(256), "behind the end and beyond the checkpoint");
        assert_eq!(rows(310, 10), Err(256), "nothing more is lost by asking again");
        rows(256, 44).unwrap();
        assert!(rows(300, 20).unwrap() == expected);
        assert_eq!(rows(255, 1), Err(0));
        rows(0, 256).unwrap();
        rows(256, 54).unwrap();
        assert!(rows(310, 10).unwrap() == expected[10 * row..]);
    }

    #[test]
    fn the_drafts_of_a_pass_are_bounded() {
        let model = load((0, 1));
        let mut engine = Batcher::new(&model, u64::MAX).unwrap();
        (0..6).for_each(|session| open(&mut engine, session, (0, 1), &[]));
        let drafts = |number| {
            let (Ask::Run(run), input) = job(number, number, 0, 9) else { unreachable!() };
            let draft = DraftIds(vec![1; 8]);
            (Ask::Run(Run { want: Want::Sample, draft, ..run }), input)
        };
        let sizes: Vec<usize> =
            passes(&mut engine, (0..6).map(drafts).collect()).iter().map(Vec::len).collect();
        assert_eq!(sizes, [3, 3], "nine rows of logits each, {LOGIT_ROWS} in a pass");
    }

    #[test]
    fn ranges_without_a_frame_are_closed_and_give_their_room_back() {
        let model = load((0, 3));
        let mut engine = Batcher::new(&model, u64::MAX).unwrap();
        open(&mut engine, 1, (0, 2), &[]);
        open(&mut engine, 2, (0, 2), &[]);
        let both = engine.sessions.reserved_bytes();
        let opened = Instant::now();
        let later = opened + crate::worker::IDLE;
        assert_eq!(engine.sessions.sweep(later - std::time::Duration::from_secs(1)), []);
        engine.sessions.touch((SessionId::numbered(2), 0), later);
        let gone = engine.sessions.sweep(later + std::time::Duration::from_secs(1));
        assert_eq!(gone, [(SessionId::numbered(1), 0)]);
        assert_eq!(engine.sessions.reserved_bytes(), both / 2);
    }
}
