//! A stage's side of attempts: which rows of its cache a frame may build on.
//!
//! Rows of a draft may turn out wrong, and the stage is not told which. It need not be: a frame says where its attempt began,
//! and that is where the rows of the attempt before stop being right. A stage that missed a whole attempt (its shadow answered
//! for it, or a frame was lost) knows only that its drafted rows are not to be trusted, and asks for them again.

/// What a frame says of the rows it carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Under which attempt of the epoch.
    pub attempt: u16,
    /// Position of the first row.
    pub from: u32,
    /// How many there are.
    pub rows: u32,
    /// How many of them, at their end, follow from drafted tokens.
    pub drafted: u32,
    /// Positions from where the attempt began to `from`; `u16::MAX` for as many or more.
    pub since: u16,
}

impl Rows {
    /// [`Rows::since`] of a frame at `from`, of an attempt that began at `start`.
    pub fn since(from: u32, start: u32) -> u16 {
        u16::try_from(from.saturating_sub(start)).unwrap_or(u16::MAX)
    }
}

/// What to do with a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// Nothing: its attempt was abandoned.
    Abandoned,
    /// Cut the cache to its first position and compute it, if the cache reaches so far.
    Compute,
    /// Answer that only so many positions of the cache are right.
    NeedReplay(u32),
}

/// The attempts of one epoch, as a stage sees them for one range of layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attempts {
    attempt: u16,
    /// Where the attempt began, as far as that is known.
    start: Option<u32>,
    /// From this position on the cache holds rows of a draft, of this attempt.
    drafts: Option<u32>,
    /// From this position on what the cache holds is of no use.
    void: Option<u32>,
}

impl Attempts {
    /// The latest attempt that was heard of.
    pub fn attempt(&self) -> u16 {
        self.attempt
    }

    /// [`Rows::since`] of the output of a frame at `from`, for the next stage.
    pub fn since(&self, from: u32) -> u16 {
        match self.start {
            Some(start) => Rows::since(from, start),
            None if self.attempt == 0 => Rows::since(from, 0),
            None => u16::MAX,
        }
    }

    /// Rows of drafts leave the cache, since nothing here says whether they were right: the position below which the others
    /// stay.
    pub fn drop_drafts(&mut self) -> u32 {
        self.drafts.take().unwrap_or(u32::MAX).min(self.void.take().unwrap_or(u32::MAX))
    }

    /// Another epoch begins and the attempts start over: the position below which rows of the cache may be kept.
    pub fn begin_epoch(&mut self) -> u32 {
        let kept = self.drop_drafts();
        *self = Self::default();
        kept
    }

    /// Takes in a frame.
    pub fn take(&mut self, rows: &Rows) -> Taken {
        if rows.attempt < self.attempt {
            return Taken::Abandoned;
        }
        if rows.attempt > self.attempt {
            let start = (rows.since < u16::MAX).then(|| rows.from.saturating_sub(u32::from(rows.since)));
            if let Some(drafts) = self.drafts.take() {
                // The attempt right after it begins where the rows of this one stop being right.
                let follows = rows.attempt - self.attempt == 1;
                let right = start.filter(|_| follows).map_or(drafts, |start| start.max(drafts));
                self.void = Some(self.void.map_or(right, |void| void.min(right)));
            }
            (self.attempt, self.start) = (rows.attempt, start);
        }
        if let Some(void) = self.void.filter(|void| rows.from > *void) {
            return Taken::NeedReplay(void);
        }
        self.void = None;
        // Who goes on under the same attempt has found all of its drafts right.
        self.drafts = (rows.drafted > 0).then(|| (rows.from + rows.rows).saturating_sub(rows.drafted));
        Taken::Compute
    }
}

#[cfg(test)]
mod tests {
    use super::{Attempts, Rows, Taken};

    fn frame(attempt: u16, from: u32, rows: u32, drafted: u32, start: u32) -> Rows {
        Rows { attempt, from, rows, drafted, since: Rows::since(from, start) }
    }

    #[test]
    fn a_rejected_draft_is_cut_where_the_next_attempt_begins() {
        let mut stage = Attempts::default();
        assert_eq!(stage.take(&frame(0, 0, 96, 0, 0)), Taken::Compute);
        assert_eq!(stage.take(&frame(0, 96, 5, 4, 0)), Taken::Compute);
        // Two of four were right.
        assert_eq!(stage.take(&frame(1, 99, 5, 4, 99)), Taken::Compute);
        assert_eq!(stage.take(&frame(0, 96, 5, 4, 0)), Taken::Abandoned);
        // All were right: it goes on.
        assert_eq!(stage.take(&frame(1, 104, 1, 0, 99)), Taken::Compute);
        assert_eq!((stage.attempt(), stage.since(104)), (1, 5));
    }

    #[test]
    fn who_missed_the_frame_after_a_rejected_draft_does_not_build_on_it() {
        let mut stage = Attempts::default();
        stage.take(&frame(0, 10, 5, 4, 0));
        // Its shadow answered for position 13; the rows below are right, the one at 13 is not.
        assert_eq!(stage.take(&frame(1, 14, 1, 0, 13)), Taken::NeedReplay(13));
        assert_eq!(stage.take(&frame(1, 15, 1, 0, 13)), Taken::NeedReplay(13));
        assert_eq!(stage.take(&frame(1, 13, 3, 0, 13)), Taken::Compute);
        assert_eq!(stage.take(&frame(1, 16, 1, 0, 13)), Taken::Compute);
        // Of an attempt it has not heard of at all nothing says where it began: its drafts are computed again.
        let mut stage = Attempts::default();
        stage.take(&frame(0, 10, 5, 4, 0));
        assert_eq!(stage.take(&frame(2, 13, 1, 0, 13)), Taken::NeedReplay(11));
        // Nor of one that began too long ago.
        let mut stage = Attempts::default();
        stage.take(&frame(0, 10, 5, 4, 0));
        assert_eq!(stage.take(&frame(1, 100_000, 1, 0, 12)), Taken::NeedReplay(11));
        assert_eq!(stage.since(100_000), u16::MAX);
    }

    #[test]
    fn no_draft_is_kept_into_another_epoch() {
        let mut stage = Attempts::default();
        stage.take(&frame(0, 10, 5, 4, 0));
        assert_eq!((stage.begin_epoch(), stage), (11, Attempts::default()));
        stage.take(&frame(0, 10, 5, 4, 0));
        stage.take(&frame(1, 14, 1, 0, 13));
        assert_eq!(stage.begin_epoch(), 13);
        stage.take(&frame(0, 14, 1, 0, 13));
        assert_eq!(stage.begin_epoch(), u32::MAX);
    }

    #[test]
    fn without_drafts_an_attempt_changes_nothing() {
        let mut stage = Attempts::default();
        assert_eq!(stage.take(&frame(0, 10, 1, 0, 0)), Taken::Compute);
        assert_eq!(stage.take(&frame(3, 11, 1, 0, 2)), Taken::Compute);
        assert_eq!(stage.take(&frame(3, 4, 9, 0, 2)), Taken::Compute);
    }
}
