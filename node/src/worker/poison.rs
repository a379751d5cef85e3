//! Which sessions were being computed when workers died.
//!
//! A prompt that makes the engine crash would, replayed on the next worker, kill one after the other. A session that was
//! under way in two deaths is therefore given up.
//!
//! Limits: everything a dead worker had under way is suspected, so a session that shared two workers with a poisonous
//! one falls with it. The last [`REMEMBERED`] sessions are remembered.

use std::sync::{Arc, Mutex, PoisonError};

use scheduler::SessionId;

/// Deaths after which a session is given up.
const FATAL: u32 = 2;
/// Sessions remembered; the one suspected longest ago goes first.
const REMEMBERED: usize = 1024;

/// Counts deaths per session; clones share the count.
#[derive(Clone, Debug, Default)]
pub struct PoisonGuard {
    suspects: Arc<Mutex<Vec<(SessionId, u32)>>>,
}

impl PoisonGuard {
    /// A worker died while it computed `session`.
    pub fn suspect(&self, session: SessionId) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        let before = suspects.iter().position(|s| s.0 == session).map(|at| suspects.remove(at).1);
        if suspects.len() == REMEMBERED {
            suspects.remove(0);
        }
        suspects.push((session, before.unwrap_or(0) + 1));
    }

    /// Worker deaths during `session`.
    pub fn deaths(&self, session: SessionId) -> u32 {
        let suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        suspects.iter().find(|s| s.0 == session).map_or(0, |s| s.1)
    }

    /// Whether no worker should compute `session` any more.
    pub fn is_poison(&self, session: SessionId) -> bool {
        self.deaths(session) >= FATAL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_death_gives_a_session_up_and_old_suspects_are_forgotten() {
        let guard = PoisonGuard::default();
        let session = SessionId::numbered;
        guard.suspect(session(1));
        assert!(!guard.is_poison(session(1)));
        guard.clone().suspect(session(1));
        assert!(guard.is_poison(session(1)) && !guard.is_poison(session(2)));
        (2..2 + REMEMBERED as u64 - 1).for_each(|n| guard.suspect(session(n)));
        assert_eq!(guard.deaths(session(1)), 2);
        guard.suspect(session(9999));
        assert_eq!(guard.deaths(session(1)), 0);
    }
}
