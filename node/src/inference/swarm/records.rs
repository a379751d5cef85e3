//! The records of the swarm, for the API: files of the node's folder, and what the running node remembers.

use std::sync::Arc;

use api::{
    inference::{Failure, SwarmRecords},
    swarm_records::{AnswerRecord, History, Invite, NodeName},
};
use futures::{FutureExt, future::BoxFuture};

use super::SwarmState;
use crate::{
    Error, clock,
    control::Question,
    node_names, output,
    reports::{AnswersReport, InviteReport},
    swarm_history,
};

/// The records of the node behind a door.
pub(super) struct Records(pub(super) Arc<SwarmState>);

impl SwarmRecords for Records {
    fn name(&self, name: NodeName) -> Result<(), Failure> {
        node_names::keep(&self.0.home, name).map_err(|error| match error {
            Error::Usage(why) => Failure::invalid("name", why),
            error => Failure::Internal { why: error.to_string() },
        })?;
        self.0.board.tell_everything(&self.0);
        Ok(())
    }

    fn history(&self, days: u32) -> Result<History, Failure> {
        let read = swarm_history::read(&self.0.home, clock::unix_s(), days);
        read.map_err(|error| Failure::Internal { why: format!("the history cannot be read: {error}") })
    }

    fn answers(&self) -> BoxFuture<'static, Result<Vec<AnswerRecord>, Failure>> {
        let shared = self.0.clone();
        async move { Ok(shared.door.one::<AnswersReport>(Question::Answers).await?.answers) }.boxed()
    }

    fn invite(&self) -> BoxFuture<'static, Result<Invite, Failure>> {
        let shared = self.0.clone();
        async move {
            let InviteReport { code, swarm, .. } = shared.door.one(Question::Invite).await?;
            let qr = output::qr(&code).map(|qr| qr_rows(&qr)).unwrap_or_default();
            Ok(Invite { code, swarm, qr })
        }
        .boxed()
    }
}

/// The modules, `1` for dark ones, row by row.
fn qr_rows(qr: &qrcode::QrCode) -> Vec<String> {
    let dark = |color: &qrcode::Color| if *color == qrcode::Color::Dark { '1' } else { '0' };
    qr.to_colors().chunks(qr.width()).map(|row| row.iter().map(dark).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_a_square_with_three_corners() {
        let rows = qr_rows(&output::qr(&format!("shoal1{}", "q".repeat(300))).unwrap());
        assert!(rows.iter().all(|row| row.len() == rows.len()), "{rows:?}");
        let far = rows.len() - 7;
        for (x, y) in [(0, 0), (far, 0), (0, far)] {
            for (at, row) in rows[y..y + 7].iter().enumerate() {
                let inner = if at % 6 == 0 {
                    "1111111"
                } else if at == 1 || at == 5 {
                    "1000001"
                } else {
                    "1011101"
                };
                assert_eq!(&row[x..x + 7], inner);
            }
        }
        assert!(output::qr(&"x".repeat(8_000)).is_none(), "too long for any");
    }
}
