//! Measures what this machine can do at best, to hold the engine's speed against.

use std::{ops::Range, time::Instant};

use scheduler::{AttentionKind, CacheType, SessionKind, attention::H2o};

use crate::{
    Error, Result,
    kernels::{
        AttentionJob, Cpu, Far, KvQuarter, KvShape, QUARTER,
        attention::{
            self,
            landmarks::{self, landmark_len},
        },
        new_quarter, time_reads,
    },
    state::{
        Evicting, LayerState, Paged,
        look::{Rows, look_back},
    },
    synthetic::Random,
};

/// Large enough to leave most caches; server caches of hundreds of MB keep part of it, which makes the figure higher
/// and the engine's share of it lower.
const PROBE_BYTES: usize = 512 << 20;
const PASSES: usize = 5;

/// Bytes per second all threads of `cpu` read together from memory, laid out as weights are: the best of a few passes.
///
/// # Errors
/// [`crate::Error::Invalid`] when half a gigabyte of memory is not to be had.
pub fn read_bandwidth(cpu: &Cpu) -> Result<f64> {
    let times = time_reads(cpu, PROBE_BYTES, PASSES)?;
    let best = times.iter().min().copied().unwrap_or_default();
    Ok(PROBE_BYTES as f64 / best.as_secs_f64().max(1e-9))
}

/// Heads of the attention that is timed, each with keys and values of its own, and values of one.
pub const HEADS: KvShape = KvShape::new(8, 64);
/// Most positions that attention is timed over: four arrays of 2 KiB a position are in memory, and pages of half as much.
pub const MAX_POSITIONS: usize = 1 << 18;

/// What attention took, in milliseconds, one entry per run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AttentionTimes {
    /// All rows in one pass, landmarks included.
    pub pass_ms: Vec<f64>,
    /// The last row alone, as a decoding step computes it.
    pub step_ms: Vec<f64>,
}

/// Times the attention of one layer of [`HEADS`] over random rows.
///
/// # Errors
/// [`Error::Invalid`] for no positions or more than [`MAX_POSITIONS`], and for a kind whose numbers are out of bounds or that
/// is not computed.
pub fn attention(cpu: &Cpu, session: SessionKind, positions: usize, runs: usize) -> Result<AttentionTimes> {
    if !(1..=MAX_POSITIONS).contains(&positions) {
        return Err(Error::invalid(format!("{positions} positions: 1 to {MAX_POSITIONS} can be timed")));
    }
    let kind = session.attention.checked().map_err(|why| Error::invalid(why.to_string()))?;
    let shape = KvShape { cache: session.cache, ..HEADS };
    let evicts = matches!(kind, AttentionKind::H2o(_));
    if shape.cache != CacheType::F16 && (evicts || matches!(kind, AttentionKind::Sparse(_))) {
        return Err(Error::invalid(format!("a cache of {} with attention {kind}: choose f16", shape.cache)));
    }
    let width = HEADS.kv_heads * HEADS.head_dim;
    let mut random = Random(1);
    let mut rows =
        || (0..positions * width).map(|_| random.below(4096) as f32 / 2048.0 - 1.0).collect::<Vec<_>>();
    let (q, k, v, mut out) = (rows(), rows(), rows(), vec![0.0; positions * width]);
    let mut pages: Vec<KvQuarter> =
        (0..positions.div_ceil(QUARTER)).map(|quarter| new_quarter(shape, quarter, 0)).collect();
    attention::store_kv(cpu, &mut pages, shape, &k, &v, 0);
    let (window, rule) = match kind {
        AttentionKind::Dense => (None, None),
        AttentionKind::Window(window) => (Some(window as usize + 1), None),
        AttentionKind::Sparse(rule) => (None, Some(rule)),
        AttentionKind::H2o(rule) => return Ok(evicting(cpu, rule, (positions, runs), (&q, &k, &v))),
    };
    let block = rule.map_or(0, |rule| rule.block as usize);
    let mut landmarks = vec![0; positions.checked_div(block).unwrap_or(0) * landmark_len(HEADS)];
    let mut times = AttentionTimes::default();
    let mut timed = |start: usize| {
        let begun = Instant::now();
        if block > 0 {
            landmarks::store(cpu, &pages, HEADS, block, start..positions, &mut landmarks);
        }
        let rows = start * width..;
        attention::attend(
            cpu,
            &mut [AttentionJob {
                q: &q[rows.clone()],
                pages: &pages,
                shape,
                start,
                n: positions - start,
                heads: HEADS.kv_heads,
                scale: 0.125,
                softcap: None,
                window,
                ahead: 0,
                far: rule.map(|rule| Far { rule, landmarks: &landmarks }),
                sinks: None,
                out: &mut out[rows],
            }],
        );
        begun.elapsed().as_secs_f64() * 1e3
    };
    timed(0);
    for _ in 0..runs {
        times.pass_ms.push(timed(0));
        times.step_ms.push(timed(positions - 1));
    }
    Ok(times)
}

/// As [`attention`], of a session that forgets what it looks at least: all rows but the last, and then the last, what they are
/// stored and counted for included.
fn evicting(
    cpu: &Cpu,
    rule: H2o,
    (positions, runs): (usize, usize),
    (q, k, v): (&[f32], &[f32], &[f32]),
) -> AttentionTimes {
    let width = HEADS.kv_heads * HEADS.head_dim;
    let mut out = vec![0.0; positions * width];
    let mut timed = |state: &mut Evicting, rows: Range<usize>| {
        state.reserve(rows.end);
        let of = rows.start * width..rows.end * width;
        let begun = Instant::now();
        let rows = Rows {
            positions: rows.clone(),
            wanted: rows.len(),
            q: &q[of.clone()],
            k: &k[of.clone()],
            v: &v[of.clone()],
            heads: HEADS.kv_heads,
            scale: 0.125,
            softcap: None,
            sinks: None,
            out: &mut out[of],
        };
        let end = rows.positions.end;
        look_back(cpu, state, rows);
        state.advance(end);
        begun.elapsed().as_secs_f64() * 1e3
    };
    let mut times = AttentionTimes::default();
    for run in 0..=runs {
        let mut state = Evicting::new(Paged::new(HEADS, rule.budget as usize), rule);
        let before = timed(&mut state, 0..positions - 1);
        let step = timed(&mut state, positions - 1..positions);
        // The first run is for the machine.
        if run > 0 {
            times.pass_ms.push(before + step);
            times.step_ms.push(step);
        }
    }
    times
}
