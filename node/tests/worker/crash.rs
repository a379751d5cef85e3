//! Workers that die, daemons that die, and what a worker may not do.

use std::{
    io::Write,
    os::unix::net::UnixStream,
    process::{Command, Stdio},
    time::Instant,
};

use node::worker::{
    Fault, JobInput, Measure, PoisonGuard, Prompt, Want,
    ipc::{self, Ask, Frame, Load, Tell, Threads},
};
use scheduler::SessionId;
use tempfile::NamedTempFile;

use super::*;

const SESSION: SessionId = SessionId::numbered(3);

fn exists(pid: u32) -> bool {
    // A process that is gone, or a zombie that was not waited for, has no memory.
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| status.contains("VmRSS"))
}

async fn gone(pid: u32) {
    let started = Instant::now();
    while exists(pid) {
        assert!(started.elapsed() < PATIENCE, "process {pid} still holds memory");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn kill_9(pid: u32) {
    assert!(Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
}

/// The process group of a process, as the system's file about it says after the name in brackets.
#[cfg(target_os = "linux")]
fn group(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(2).unwrap().parse().unwrap()
}

/// A terminal sends Ctrl-C to the whole group of who runs in it: the daemon is to let sessions end before workers do.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_is_not_in_the_group_that_a_terminal_interrupts() {
    let child = Child::of(spec(&[range(0, 3)])).await;
    let worker = child.worker.pid();
    assert_eq!(group(worker), worker);
    assert_ne!(group(std::process::id()), worker);
}

/// A job that takes far longer than it takes to kill the worker.
fn long(from: usize) -> Job {
    job(SESSION, 0, from, 256, JobInput::Tokens(vec![5; 256]), Want::Nothing)
}

#[tokio::test]
async fn a_killed_worker_fails_everything_and_suspects_what_it_computed() {
    let guard = PoisonGuard::default();
    for deaths in 1..=2 {
        let mut child = Child::of(Spec { guard: guard.clone(), ..spec(&[range(0, 3)]) }).await;
        child.worker.open(open(SESSION, range(0, 2), None)).await.unwrap();
        let idle = SessionId::numbered(4);
        child.worker.open(open(idle, range(0, 1), None)).await.unwrap();
        (0..100).for_each(|_| child.worker.run(long(0)).unwrap());
        tokio::task::yield_now().await;
        kill_9(child.worker.pid());
        // Outputs that were on the way come first; then one failure per open range, and the end.
        let mut failed = Vec::new();
        while let Some(output) = tokio::time::timeout(PATIENCE, child.outputs.recv()).await.unwrap() {
            match output.body {
                Body::Nothing => assert!(failed.is_empty()),
                Body::Failed(_) => failed.push((output.session, output.layers)),
                other => panic!("{other:?}"),
            }
        }
        failed.sort_unstable();
        assert_eq!(failed, [(SESSION, range(0, 2)), (idle, range(0, 1))]);
        assert!(!child.worker.is_alive());
        assert!(matches!(child.worker.run(long(0)), Err(Fault::Dead(_))));
        let dead = child.worker.encode(Prompt::raw("a".into())).await;
        assert!(matches!(dead, Err(Fault::Dead(_))));
        assert_eq!((guard.deaths(SESSION), guard.deaths(idle)), (deaths, 0));
        gone(child.worker.pid()).await;
    }
    let third = Child::of(Spec { guard, ..spec(&[range(0, 3)]) }).await;
    assert_eq!(third.worker.open(open(SESSION, range(0, 2), None)).await, Err(Fault::Poison));
}

#[tokio::test]
async fn a_worker_that_is_let_go_ends_and_blames_no_session() {
    let guard = PoisonGuard::default();
    let child = Child::of(Spec { guard: guard.clone(), ..spec(&[range(0, 3)]) }).await;
    child.worker.open(open(SESSION, range(0, 2), None)).await.unwrap();
    child.worker.run(long(0)).unwrap();
    let pid = child.worker.pid();
    assert!(exists(pid));
    child.worker.kill();
    gone(pid).await;
    let mut outputs = child.outputs;
    while outputs.recv().await.is_some() {}
    assert_eq!(guard.deaths(SESSION), 0);

    let Child { worker, outputs, .. } = Child::start(&[range(0, 3)]).await;
    let pid = worker.pid();
    drop((worker, outputs));
    gone(pid).await;
}

#[tokio::test]
async fn a_model_that_cannot_be_loaded_is_an_answer() {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(b"GGUF and then nothing that makes sense").unwrap();
    let source = Source::File(file.path().into());
    let refused = spawn(Spec { source, ..spec(&[]) }).await.map(|_| ());
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    let refused = spawn(spec(&[range(0, 9999)])).await.map(|_| ());
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    let program = Some("/no/such/program".into());
    let dead = spawn(Spec { program, ..spec(&[]) }).await.map(|_| ());
    assert!(matches!(dead, Err(Fault::Dead(_))), "{dead:?}");
    // A program that is no worker ends without a word.
    let program = Some("/bin/true".into());
    let dead = spawn(Spec { program, ..spec(&[]) }).await.map(|_| ());
    assert!(matches!(dead, Err(Fault::Dead(_))), "{dead:?}");
}

/// A worker started by hand, to say to it what the daemon never would.
fn bare() -> (std::process::Child, UnixStream) {
    started(&["worker"])
}

fn started(arguments: &[&str]) -> (std::process::Child, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_shoal"))
        .args(arguments)
        .stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    (child, ours)
}

fn load() -> Frame {
    let load = Load {
        file: None,
        verify: false,
        model: None,
        exact: Some(true),
        layers: vec![(0, 1)],
        context: 64,
        experts: None,
        threads: Threads { count: Some(1), nice: true, ..Threads::default() },
        isa: None,
        device: ("cpu".into(), None),
        kv_bytes: 1 << 20,
        measure: Measure::Speed,
        draft_head: None,
        state_secret: None,
    };
    Frame::new(&Ask::Load(load), Vec::new()).unwrap()
}

#[test]
fn malformed_frames_end_the_worker() {
    let mut oversized = vec![0xff; 8];
    oversized.extend([0; 64]);
    let unknown = [1, 0, 0, 0, 0, 0, 0, 0, 250].to_vec();
    // `Ping { id: 1 }` and a byte that belongs to nothing.
    let trailing = [3, 0, 0, 0, 0, 0, 0, 0, 1, 1, 7].to_vec();
    for bytes in [oversized, unknown, trailing] {
        let (mut child, mut stream) = bare();
        load().write(&mut stream).unwrap();
        let ready = ipc::read::<Tell>(&mut stream).unwrap();
        assert!(matches!(ready, Some((Tell::Ready(_), _))));
        stream.write_all(&bytes).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(1), "{bytes:?}");
    }
    // A first frame that is no load, and the end of the stream.
    let (mut child, mut stream) = bare();
    Frame::new(&Ask::Ping { id: 1 }, Vec::new()).unwrap().write(&mut stream).unwrap();
    assert!(!child.wait().unwrap().success());
    let (mut child, mut stream) = bare();
    load().write(&mut stream).unwrap();
    assert!(matches!(ipc::read::<Tell>(&mut stream).unwrap(), Some((Tell::Ready(_), _))));
    drop(stream);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_socket_the_command_explains_itself() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_shoal")).arg("worker").stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("started by the daemon"));
}

/// Set for the copies of this test program that play a part.
const ROLE: &str = "SHOAL_TEST_ROLE";

/// Runs the test `name` of this program again, as a process of its own that plays `role`.
fn act(name: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(ROLE, role);
    command
}

#[test]
fn a_worker_dies_with_its_daemon() {
    const NAME: &str = "crash::a_worker_dies_with_its_daemon";
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    if std::env::var_os(ROLE).is_some() {
        runtime.block_on(async {
            let child = Child::start(&[range(0, 3)]).await;
            child.worker.open(open(SESSION, range(0, 2), None)).await.unwrap();
            // Busy when the end comes.
            (0..200).for_each(|_| child.worker.run(long(0)).unwrap());
            tokio::time::sleep(Duration::from_millis(10)).await;
            println!("worker {}", child.worker.pid());
            std::future::pending::<()>().await;
        });
    }
    let mut daemon = act(NAME, "daemon").stdout(Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(daemon.stdout.take().unwrap()));
    let pid = lines
        .map_while(Result::ok)
        .find_map(|line| line.split_once("worker ")?.1.trim().parse().ok())
        .expect("the daemon names its worker");
    assert!(exists(pid));
    kill_9(daemon.id());
    daemon.wait().unwrap();
    runtime.block_on(gone(pid));
}

/// Everything that must be refused is tried from inside, in a process that is confined as a worker is.
#[cfg(target_os = "linux")]
#[test]
fn a_confined_process_can_do_nothing_but_compute() {
    let (mut child, mut stream) = started(&["worker", "--probe"]);
    let mut said = String::new();
    std::io::Read::read_to_string(&mut stream, &mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "filtered true\nend\n");
}

/// What the system says of a worker that runs.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_worker_has_no_privileges_and_leaves_no_core() {
    let child = Child::start(&[range(0, 3)]).await;
    assert!(child.ready.confinement.filtered);
    let about = |what: &str| std::fs::read_to_string(format!("/proc/{}/{what}", child.worker.pid())).unwrap();
    let status = about("status");
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(status.contains(line), "{line}\n{status}");
    }
    let limits = about("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"));
    // What is open is the socket and the standard streams; the model's file is mapped.
    let memory = limits.lines().find(|line| line.starts_with("Max address space")).unwrap();
    assert_ne!(memory.split_whitespace().nth(3), Some("unlimited"));
}

/// A file that was replaced since it was announced is not computed with.
#[tokio::test]
async fn a_worker_that_starts_again_hashes_a_file_that_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, node::library::embedded_bytes()).unwrap();
    let known = scheduler::ModelId::new(node::library::embedded_hash());
    let spec =
        || Spec { model: Some(known), ..Spec { source: Source::File(path.clone()), ..spec(&[range(0, 1)]) } };
    for _ in 0..2 {
        assert_eq!(Child::of(spec()).await.ready.model, known);
    }
    let mut other = node::library::embedded_bytes().to_vec();
    *other.last_mut().unwrap() ^= 1;
    std::fs::write(&path, other).unwrap();
    let refused = spawn(spec()).await.map(|_| ());
    assert!(
        matches!(&refused, Err(Fault::Refused(why)) if why.contains("not the file it was")),
        "{refused:?}"
    );
}
