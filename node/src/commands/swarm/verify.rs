//! `shoal verify PROOF`: whether a node lied, for a machine that holds the model.

use std::{fs, io, process};

use p2p::{
    codec::Wire,
    wire::receipt::{Equivocation, FraudProof, MAX_PROOF, Reexecute, Terms},
};
use scheduler::LayerRange;
use serde_json::json;
use tokio::runtime::Runtime;

use super::{join::source, runtime};
use crate::{
    Error, Result,
    audit::{Auditor, Case},
    cli::swarm::VerifyArgs,
    output::{self, say},
    worker::{self, Manners, Spec},
};

/// Computes again in a worker of its own.
struct Judge {
    runtime: Runtime,
    auditor: Auditor,
}

impl Judge {
    fn new(args: &VerifyArgs) -> Result<Self> {
        let runtime = runtime()?;
        let spec = Spec {
            isa: args.engine.isa.clone(),
            device: args.engine.device()?,
            manners: Manners {
                threads: args.engine.threads.map(usize::from),
                pin: !args.engine.no_pin,
                nice: false,
            },
            layers: LayerRange::new(0, 1).into_iter().collect(),
            ..Spec::new(source(args.engine.model())?)
        };
        // One layer is enough to learn which model it is and whether this machine is exact.
        let (worker, ready, _outputs) = runtime.block_on(worker::spawn(spec.clone()))?;
        worker.kill();
        let spec = Spec { class: Some(ready.class), ..spec };
        let auditor = Auditor::new(&spec, ready.model, ready.class).ok_or_else(|| {
            Error::Failed(
                "this machine cannot judge: it does not compute exactly (see `shoal selftest`), or the model's file \
                 has holes"
                    .into(),
            )
        })?;
        Ok(Self { runtime, auditor })
    }
}

impl Reexecute for Judge {
    fn inputs(&mut self, _: &Terms, _: &[u32], _: &[Wire]) -> Option<Vec<Vec<u8>>> {
        // Proofs made here carry their inputs; one of tokens alone stays undecided.
        None
    }

    fn output(&mut self, terms: &Terms, inputs: &[(Wire, &[u8])], form: Wire) -> Option<Vec<u8>> {
        let wire = inputs.first()?.0;
        if terms.model != self.auditor.model() || inputs.iter().any(|(other, _)| *other != wire) {
            return None;
        }
        let case = Case {
            layers: terms.layers,
            rounding: terms.rounding.clone(),
            kind: terms.kind,
            hidden: terms.hidden as usize,
            inputs: (wire, inputs.iter().flat_map(|(_, row)| *row).copied().collect()),
            output: form,
        };
        let computed = self.runtime.block_on(self.auditor.outputs(&case))?;
        Some(computed[computed.len().checked_sub(terms.row_len(form)?)?..].to_vec())
    }
}

pub(in crate::commands) fn verify(args: VerifyArgs) -> Result<()> {
    let unreadable =
        |why: &str| Error::Failed(format!("{} cannot be read as a proof: {why}", args.proof.display()));
    let bytes = match fs::metadata(&args.proof) {
        Ok(file) if file.len() > MAX_PROOF as u64 => return Err(unreadable("it is too long")),
        Ok(_) => fs::read(&args.proof).map_err(|error| unreadable(&error.to_string()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::usage(format!("there is no file {}", args.proof.display())));
        }
        Err(error) => return Err(unreadable(&error.to_string())),
    };
    let now = crate::clock::receipt_s();
    let found = match Equivocation::open(&bytes, now) {
        Ok(proof) => Ok((proof.accused(), "signed two things that cannot both be true".to_owned())),
        Err(_) => {
            let proof = FraudProof::decode(&bytes).map_err(|error| unreadable(&error.to_string()))?;
            let how =
                format!("gave a wrong output of layers {} at position {}", proof.terms.layers, proof.at);
            proof.verify(now, &mut Judge::new(&args)?).map(|node| (node, how))
        }
    };
    let (guilty, text) = match &found {
        Ok((node, how)) => (Some(format!("{node:?}")), format!("{node:?} {how}")),
        Err(why) => (None, why.to_string()),
    };
    if args.json {
        output::json_line(&json!({ "proven": guilty.is_some(), "node": guilty, "text": text }))?;
    } else {
        say!("{}: {text}", if guilty.is_some() { "proven" } else { "not proven" });
    }
    if guilty.is_none() {
        process::exit(1);
    }
    Ok(())
}
