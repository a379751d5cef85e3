//! What the way to a worker and back costs per job: `cargo bench -p shoal-node --bench worker`.
//!
//! 16 KiB of activations go in and come out again; the time that the worker computed is subtracted, so what is left is
//! framing, codec, two wake-ups on each side and the scheduling between them.

#[cfg(unix)]
fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let measured = runtime.block_on(async { tokio::spawn(measure()).await.expect("no panic") });
    if let Err(fault) = measured {
        eprintln!("error: {fault}");
    }
}

#[cfg(not(unix))]
fn main() {
    eprintln!("error: workers need a Unix system");
}

#[cfg(unix)]
async fn measure() -> Result<(), node::worker::Fault> {
    use std::time::Instant;

    use node::worker::{Body, DraftIds, Job, JobInput, OpenSession, Source, Spec, Want, spawn};
    use p2p::codec::{Rounding, Wire};
    use scheduler::{LayerRange, SessionId, SessionKind};

    const BYTES: usize = 16 << 10;
    const JOBS: usize = 2000;

    let mut spec = Spec::new(Source::Embedded);
    spec.program = Some(env!("CARGO_BIN_EXE_shoal").into());
    spec.manners.threads = Some(1);
    let (worker, ready, mut outputs) = spawn(spec).await?;
    let rows = (BYTES / 4 / ready.hidden as usize) as u32;
    let layers = LayerRange::new(1, 2).expect("a layer");
    let session = SessionId::numbered(1);
    let open = OpenSession {
        session,
        epoch: 1,
        layers,
        positions: rows,
        at: 0,
        rounding: Rounding::NONE,
        kind: SessionKind::DEFAULT,
        kept: Vec::new(),
        conduct: None,
    };
    worker.open(open).await?;
    let values: Vec<u8> = (0..rows * ready.hidden).flat_map(|i| ((i % 17) as f32).to_le_bytes()).collect();
    let mut overhead_us = Vec::with_capacity(JOBS);
    let mut compute_us = Vec::with_capacity(JOBS);
    for _ in 0..JOBS {
        let input = JobInput::Wire(Wire::Raw, values.clone());
        let (want, draft) = (Want::Activations, DraftIds::default());
        let job =
            Job { session, epoch: 1, layer: 1, from: 0, rows, input, want, attempt: 0, draft, foresee: 0 };
        let sent = Instant::now();
        worker.run(job)?;
        let Some(output) = outputs.recv().await else { break };
        let spent = sent.elapsed().as_secs_f64() * 1e6;
        assert!(matches!(output.body, Body::Activations(..)), "{:?}", output.body);
        compute_us.push(output.compute_us as f64);
        overhead_us.push(spent - output.compute_us as f64);
    }
    for (what, mut times) in [("overhead", overhead_us), ("compute", compute_us)] {
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{what:9} {rows} rows, {} bytes: p10 {:.1} us, median {:.1} us, p90 {:.1} us, p99 {:.1} us",
            values.len(),
            at(0.1),
            at(0.5),
            at(0.9),
            at(0.99)
        );
    }
    println!(
        "loaded in {:.0} ms; one layer: decode {:.4} ms, prefill {:.4} ms/token; visit {:.4} ms; head {:.4} ms",
        ready.load_ms,
        ready.times.decode_ms,
        ready.times.prefill_ms,
        ready.times.visit_ms,
        ready.times.head_ms
    );
    Ok(())
}
