//! Which processors exist, which are fast, and who has them.
//!
//! Two pools whose threads are bound to one core halve each other while another core may idle: threads that wait for each
//! other many thousand times a second wait for the slowest. So a core belongs to one pool at a time, whichever process
//! the pool is in: a *claim* holds a lock (`flock`) on one file for each physical core, in the one folder of this user,
//! wherever its processes keep their files, and the system gives the locks back when the claim is dropped or its process dies, however it dies. A pool that does not get as
//! many processors as it has threads binds none: the system moves its threads to where there is room.
//!
//! A machine may have memory at several *nodes* (NUMA), each near some of the processors. A pool is placed at one node where that has
//! enough free cores, and its memory then comes from there, as the system gives it. Threads at several nodes read all weights
//! together, rows in no order of theirs, so their memory is spread over these nodes page by page ([`interleave`]): every line to
//! memory carries its share.
//!
//! Nor is a core claimed while other programs keep the machine busy: a thread that may not move shares its core with
//! whatever is put there.
//!
//! Limits: Linux; other users' processes are seen as load only; a machine that becomes busy later keeps its claims.

#[cfg(target_os = "linux")]
pub use linux::Cores;
#[cfg(target_os = "linux")]
pub(super) use linux::{bind, cores, interleave, nodes_of};

#[cfg(not(target_os = "linux"))]
pub use elsewhere::Cores;
#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{bind, cores, interleave, nodes_of};

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        cmp::Reverse,
        collections::{BTreeMap, BTreeSet},
        fs::{self, DirBuilder, File, OpenOptions},
        io, mem,
        os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
        path::{Path, PathBuf},
        sync::OnceLock,
        thread,
        time::Duration,
    };

    /// Looks at how many threads run, and the time between two: the least counts, so that one that is about to sleep is
    /// no load. Half a tick of the system's scheduler.
    const LOOKS: usize = 3;
    const BETWEEN: Duration = Duration::from_millis(2);

    /// A processor of the system as the kernel numbers it.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub(super) struct Processor {
        pub(super) id: usize,
        /// Smallest processor number on the same physical core.
        pub(super) core: usize,
        /// The memory that is near.
        pub(super) node: usize,
        /// Relative speed: (capacity, maximum frequency), zero when unknown.
        pub(super) speed: (u64, u64),
    }

    /// Processors that no other pool of this user is bound to while this is there.
    #[derive(Debug)]
    pub struct Cores {
        processors: Vec<usize>,
        /// One per physical core.
        _locks: Vec<File>,
    }

    impl Cores {
        /// Processors for `threads` threads, the fastest first, on cores that are not claimed yet. `None` where there are too
        /// few, where the machine is busy, and where no folder is to be had for the locks.
        pub fn claim(threads: usize) -> Option<Self> {
            let idle = (0..LOOKS).any(|look| {
                if look > 0 {
                    thread::sleep(BETWEEN);
                }
                leaves_room(&fs::read_to_string("/proc/stat").unwrap_or_default(), threads)
            });
            if !idle {
                return None;
            }
            let folder =
                folder().inspect_err(|error| tracing::debug!(%error, "no cores can be claimed")).ok()?;
            Self::claim_in(&folder, all(), threads)
        }

        /// At one node where that has enough, else wherever there are some.
        pub(super) fn claim_in(folder: &Path, preferred: &[Processor], threads: usize) -> Option<Self> {
            let mut nodes: Vec<usize> = Vec::new();
            preferred.iter().for_each(|p| nodes.extend((!nodes.contains(&p.node)).then_some(p.node)));
            let of_node = |node: usize| -> Vec<Processor> {
                preferred.iter().filter(|processor| processor.node == node).cloned().collect()
            };
            let at_one = |near: Vec<Processor>| Self::claim_of(folder, &near, (threads, threads));
            nodes
                .into_iter()
                .map(of_node)
                .find_map(at_one)
                .or_else(|| Self::claim_of(folder, preferred, (threads, 1)))
        }

        /// On at least `apart` cores.
        fn claim_of(
            folder: &Path,
            preferred: &[Processor],
            (threads, apart): (usize, usize),
        ) -> Option<Self> {
            let cores: BTreeSet<usize> = preferred.iter().map(|processor| processor.core).collect();
            let mut locks = BTreeMap::new();
            for Processor { core, .. } in preferred {
                if locks.len() < threads.min(cores.len())
                    && !locks.contains_key(core)
                    && let Some(lock) = lock(folder, *core)
                {
                    locks.insert(*core, lock);
                }
            }
            let ours = preferred.iter().filter(|processor| locks.contains_key(&processor.core));
            let processors: Vec<usize> = ours.map(|processor| processor.id).take(threads).collect();
            let enough = processors.len() == threads && locks.len() >= apart;
            enough.then(|| Self { processors, _locks: locks.into_values().collect() })
        }

        /// One for each thread.
        pub fn processors(&self) -> &[usize] {
            &self.processors
        }
    }

    /// Takes a core, unless another has it.
    pub(super) fn lock(folder: &Path, core: usize) -> Option<File> {
        let path = folder.join(format!("core-{core}"));
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).ok()?;
        file.try_lock().ok()?;
        Some(file)
    }

    /// The folder of this user's locks. No variable decides where it is, and no service is given one of its own there, as
    /// some are of `/tmp`: a service and a shell of one user meet. One that another user made is not used.
    pub(super) fn folder() -> io::Result<PathBuf> {
        let me = fs::metadata("/proc/self")?.uid();
        let shared = ["/dev/shm", "/tmp"].map(Path::new).into_iter().find(|shared| shared.is_dir());
        let shared = shared.ok_or_else(|| io::Error::other("there is neither /dev/shm nor /tmp"))?;
        let folder = shared.join(format!("shoal-cores-{me}"));
        match DirBuilder::new().mode(0o700).create(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let made = fs::symlink_metadata(&folder)?;
        if made.is_dir() && made.uid() == me && made.mode() & 0o022 == 0 {
            return Ok(folder);
        }
        Err(io::Error::other(format!("{} is not this user's alone, remove it", folder.display())))
    }

    /// Whether `threads` more threads fit beside those that run, by the kernel's `/proc/stat`. One of those that run reads
    /// this. What cannot be read is no reason against it.
    pub(super) fn leaves_room(stat: &str, threads: usize) -> bool {
        let numbered = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| !rest.starts_with(' '));
        let processors = stat.lines().filter(numbered).count();
        let running = stat.lines().find_map(|line| line.strip_prefix("procs_running "));
        let running = running.and_then(|number| number.trim().parse::<usize>().ok()).unwrap_or(1);
        processors == 0 || running.saturating_sub(1) + threads <= processors
    }

    /// The processors this process may use, in order of preference.
    fn all() -> &'static [Processor] {
        static ALL: OnceLock<Vec<Processor>> = OnceLock::new();
        // Read once, before any thread of ours is bound, because a bound thread sees only its own processor.
        ALL.get_or_init(|| preference(topology(Path::new("/sys/devices/system/cpu"), &allowed())))
    }

    /// Distinct physical cores of the affinity mask.
    pub(crate) fn cores() -> Option<usize> {
        let firsts = all().iter().map(|p| p.core).collect::<BTreeSet<_>>();
        (!firsts.is_empty()).then_some(firsts.len())
    }

    /// The nodes of `processors`, or of all that this process may use if there are none.
    pub(crate) fn nodes_of(processors: &[usize]) -> Vec<usize> {
        let used = all().iter().filter(|p| processors.is_empty() || processors.contains(&p.id));
        used.map(|processor| processor.node).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Has the memory that the calling thread touches first come from these nodes in turn, page by page, if they are several; a
    /// refusal is harmless and only logged.
    pub(crate) fn interleave(nodes: &[usize]) {
        /// See the page of `set_mempolicy(2)`.
        const MPOL_INTERLEAVE: libc::c_long = 3;
        let Some(last) = nodes.last().filter(|_| nodes.len() > 1) else { return };
        let bits = libc::c_ulong::BITS as usize;
        let mut mask: Vec<libc::c_ulong> = vec![0; last / bits + 1];
        nodes.iter().for_each(|node| mask[node / bits] |= 1 << (node % bits));
        // The kernel counts one bit more than it reads.
        let count = mask.len() * bits + 1;
        // SAFETY: the kernel reads `count - 1` bits of the mask and changes this thread's policy alone.
        let failed = unsafe {
            libc::syscall(libc::SYS_set_mempolicy, MPOL_INTERLEAVE, mask.as_ptr(), count as libc::c_ulong)
                != 0
        };
        if failed {
            tracing::debug!(?nodes, "memory cannot be spread over nodes");
        }
    }

    /// Binds the calling thread to a processor; a refusal is harmless and only logged.
    pub(crate) fn bind(processor: usize) {
        // SAFETY: an all-zero cpu_set_t is the empty set; CPU_SET checks its index; the kernel reads the set's size.
        let failed = unsafe {
            let mut set = mem::zeroed::<libc::cpu_set_t>();
            libc::CPU_SET(processor, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &set) != 0
        };
        if failed {
            tracing::debug!(processor, "cannot bind a compute thread");
        }
    }

    /// Processors this thread may run on.
    fn allowed() -> Vec<usize> {
        // SAFETY: the kernel writes at most the set's size; CPU_ISSET only reads it.
        unsafe {
            let mut set = mem::zeroed::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size_of_val(&set), &mut set) != 0 {
                return Vec::new();
            }
            (0..libc::CPU_SETSIZE as usize).filter(|&id| libc::CPU_ISSET(id, &set)).collect()
        }
    }

    /// The allowed processors as described under `root` (the kernel's `/sys/devices/system/cpu`).
    pub(super) fn topology(root: &Path, allowed: &[usize]) -> Vec<Processor> {
        let describe = |&id: &usize| {
            let read = |name: &str| fs::read_to_string(root.join(format!("cpu{id}")).join(name)).ok();
            let number = |name: &str| read(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            let siblings = read("topology/core_cpus_list").or_else(|| read("topology/thread_siblings_list"));
            // A list such as "0,8" or "0-1": its first number names the core.
            let core = siblings.and_then(|list| {
                list.split(|c: char| !c.is_ascii_digit()).find_map(|first| first.parse().ok())
            });
            let speed = (number("cpu_capacity"), number("cpufreq/cpuinfo_max_freq"));
            let entries = fs::read_dir(root.join(format!("cpu{id}"))).into_iter().flatten().flatten();
            let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let node = names.filter_map(|name| name.strip_prefix("node")?.parse().ok()).min().unwrap_or(0);
            Processor { id, core: core.unwrap_or(id), node, speed }
        };
        allowed.iter().map(describe).collect()
    }

    /// One processor per physical core, node by node and the fastest first; then the second thread of each core, and so on. The node
    /// with most cores is the first.
    pub(super) fn preference(mut processors: Vec<Processor>) -> Vec<Processor> {
        processors.sort_by_key(|p| p.id);
        let ranks = processors
            .iter()
            .map(|p| processors.iter().filter(|other| other.core == p.core && other.id < p.id).count())
            .collect::<Vec<_>>();
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        processors.iter().zip(&ranks).filter(|(_, rank)| **rank == 0).for_each(|(p, _)| {
            *sizes.entry(p.node).or_default() += 1;
        });
        let size = |p: &Processor| sizes.get(&p.node).copied().unwrap_or(0);
        let mut ranked = ranks.into_iter().zip(processors).collect::<Vec<_>>();
        ranked.sort_by_key(|(rank, p)| (*rank, Reverse(size(p)), p.node, Reverse(p.speed), p.id));
        ranked.into_iter().map(|(_, p)| p).collect()
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    //! No binding here: the system's scheduler places the threads.

    /// Processors for one pool alone; there are none to be had here.
    #[derive(Debug)]
    pub struct Cores(std::convert::Infallible);

    impl Cores {
        /// None.
        pub fn claim(_threads: usize) -> Option<Self> {
            None
        }

        /// One for each thread.
        pub fn processors(&self) -> &[usize] {
            match self.0 {}
        }
    }

    pub(crate) fn cores() -> Option<usize> {
        None
    }
    pub(crate) fn bind(_processor: usize) {}
    pub(crate) fn nodes_of(_processors: &[usize]) -> Vec<usize> {
        Vec::new()
    }
    pub(crate) fn interleave(_nodes: &[usize]) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{
        env, fs,
        process::{self, Command},
    };

    use super::linux::{Cores, Processor, folder, leaves_room, lock, preference, topology};

    #[test]
    fn fast_cores_come_first() {
        let root = tempfile::tempdir().expect("a folder");
        // Two slow single-thread cores (0, 1), then two fast cores of two threads (2+4, 3+5).
        for (id, siblings, frequency) in [
            (0, "0", 3_900_000),
            (1, "1", 3_900_000),
            (2, "2,4", 5_100_000),
            (3, "3,5", 5_300_000),
            (4, "2,4", 5_100_000),
            (5, "3,5", 5_300_000),
        ] {
            let folder = root.path().join(format!("cpu{id}"));
            fs::create_dir_all(folder.join("topology")).expect("a folder");
            fs::create_dir_all(folder.join("cpufreq")).expect("a folder");
            fs::write(folder.join("topology/core_cpus_list"), format!("{siblings}\n")).expect("a file");
            fs::write(folder.join("cpufreq/cpuinfo_max_freq"), format!("{frequency}\n")).expect("a file");
        }
        let order = |allowed: &[usize]| {
            let all = preference(topology(root.path(), allowed));
            all.into_iter().map(|p| p.id).collect::<Vec<_>>()
        };
        assert_eq!(order(&[0, 1, 2, 3, 4, 5]), [3, 2, 0, 1, 5, 4]);
        assert_eq!(order(&[0, 4, 5]), [5, 4, 0]);
        assert_eq!(order(&[7]), [7]);
    }

    /// Two cores of two threads each: 0 and 2, 1 and 3.
    fn machine() -> Vec<Processor> {
        preference((0..4).map(|id| Processor { id, core: id % 2, node: 0, speed: (0, 0) }).collect())
    }

    /// Three cores at node 1, two at node 0, processors numbered in turn, each core with a second thread.
    fn two_nodes(root: &std::path::Path) -> Vec<Processor> {
        for id in 0..10 {
            let (core, node) = (id % 5, [0, 1, 0, 1, 1][id % 5]);
            let folder = root.join(format!("cpu{id}"));
            fs::create_dir_all(folder.join("topology")).expect("a folder");
            fs::create_dir_all(folder.join(format!("node{node}"))).expect("a folder");
            let siblings = format!("{core},{}\n", core + 5);
            fs::write(folder.join("topology/core_cpus_list"), siblings).expect("a file");
        }
        preference(topology(root, &(0..10).collect::<Vec<_>>()))
    }

    #[test]
    fn a_pool_is_at_one_node_where_that_has_enough_cores() {
        let root = tempfile::tempdir().expect("a folder");
        let machine = two_nodes(root.path());
        let ids = machine.iter().map(|p| p.id).collect::<Vec<_>>();
        assert_eq!(ids, [1, 3, 4, 0, 2, 6, 8, 9, 5, 7], "node by node, the larger one first");
        let folder = tempfile::tempdir().expect("a folder");
        let claim = |threads| Cores::claim_in(folder.path(), &machine, threads);
        let two = claim(2).expect("all are free");
        assert_eq!(two.processors(), [1, 3]);
        // One core is left there, so the other node has the next pool, and then there is one core here.
        let next = claim(2).expect("two are free at the other node");
        assert_eq!((next.processors(), claim(1).expect("one is free").processors()), (&[0, 2][..], &[4][..]));
        drop(next);
        assert_eq!(claim(3).expect("three are free, at two nodes").processors(), [4, 0, 2]);
        drop(two);
        assert_eq!(claim(5).expect("all are free").processors(), [1, 3, 4, 0, 2]);
        assert_eq!(claim(6).expect("all are free, two threads of one core").processors(), [1, 3, 4, 0, 2, 6]);
    }

    fn claim(folder: &std::path::Path, threads: usize) -> Option<Cores> {
        Cores::claim_in(folder, &machine(), threads)
    }

    #[test]
    fn a_core_belongs_to_one_pool() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = claim(folder.path(), 1).expect("all are free");
        let other = claim(folder.path(), 1).expect("one is free");
        assert_eq!((one.processors(), other.processors()), (&[0][..], &[1][..]));
        assert!(
            claim(folder.path(), 1).is_none(),
            "the second thread of a core that is taken is no free core"
        );
        drop(one);
        assert!(claim(folder.path(), 3).is_none(), "too few for one each");
        let again = claim(folder.path(), 2).expect("two threads of one core");
        assert_eq!(again.processors(), [0, 2]);
        drop((again, other));
        assert_eq!(claim(folder.path(), 2).expect("all are free").processors(), [0, 1]);
        assert_eq!(claim(folder.path(), 3).expect("all are free").processors(), [0, 1, 2]);
        assert!(claim(folder.path(), 5).is_none());
    }

    /// What a process with other folders of its own finds: `free` or `taken`. It is this test again, told so by a variable.
    fn elsewhere(core: usize, private: &std::path::Path) -> String {
        let output = Command::new(env::current_exe().expect("this program"))
            .args([
                "--exact",
                "kernels::processors::tests::processes_of_one_user_share_their_locks",
                "--nocapture",
            ])
            .env(CORE, core.to_string())
            .env("XDG_RUNTIME_DIR", private)
            .env("TMPDIR", private)
            .env("HOME", private)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let word = |word: &&str| said.contains(&format!("the core is {word}"));
        (*["free", "taken"].iter().find(|at| word(at)).unwrap_or_else(|| panic!("{said}"))).to_owned()
    }

    const CORE: &str = "SHOAL_TEST_CORE";

    #[test]
    fn processes_of_one_user_share_their_locks() {
        let folder = folder().expect("a folder");
        if let Ok(core) = env::var(CORE) {
            let core = core.parse().expect("a number");
            println!("the core is {}", if lock(&folder, core).is_some() { "free" } else { "taken" });
            return;
        }
        // No machine has it, and no other run of this test asks for it.
        let core = 1_000_000 + process::id() as usize;
        let private = tempfile::tempdir().expect("a folder");
        let ours = lock(&folder, core).expect("it is free");
        assert_eq!(elsewhere(core, private.path()), "taken");
        drop(ours);
        assert_eq!(elsewhere(core, private.path()), "free");
        let _ = fs::remove_file(folder.join(format!("core-{core}")));
    }

    #[test]
    fn a_busy_machine_is_left_to_its_scheduler() {
        let stat =
            |running: usize| format!("cpu  9 9\ncpu0 1 2\ncpu1 1 2\nintr 5\nprocs_running {running}\n");
        assert!(leaves_room(&stat(1), 2) && leaves_room(&stat(2), 1));
        assert!(!leaves_room(&stat(2), 2) && !leaves_room(&stat(3), 1));
        assert!(leaves_room("", 64), "nothing is known");
    }
}
