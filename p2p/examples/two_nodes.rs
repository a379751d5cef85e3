//! Two nodes on this machine meet: one dials, the other one opens a stream and sends a greeting.
//!
//! `cargo run -p shoal-p2p --example two_nodes`
#![forbid(unsafe_code)]

use std::{error::Error, time::Duration};

use p2p::{Config, Event, Identity, Plane};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const GREETING: &[u8] = b"hello, neighbor";
const MAX_GREETING: usize = 64;

fn config() -> p2p::Result<Config> {
    let listen = vec!["/ip4/127.0.0.1/tcp/0".to_owned()];
    Ok(Config { listen, ..Config::loopback(Identity::generate()?) })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (alice, mut of_alice) = p2p::spawn(config()?).await?;
    let (bob, _of_bob) = p2p::spawn(config()?).await?;
    let address = alice.addresses().await.into_iter().next().ok_or("alice listens nowhere")?;

    // A dial ends when the other side has proved its key: the name is not a claim.
    let met = bob.dial(&address).await?;
    println!("bob {} met alice {met} at {address}", bob.me());

    // Every stream belongs to a plane with a protocol and limits of its own; a session's frames use `Plane::Data`.
    let mut stream = bob.open(met, Plane::Data).await?;
    stream.send(&[GREETING.len() as u8], GREETING).await?;

    let received = async {
        while let Some(event) = of_alice.next().await {
            if let Event::Incoming { from, mut stream, .. } = event {
                println!("alice has a stream of {from}");
                // The length is a stranger's: it is checked against a cap before any memory is taken.
                let (mut len, mut payload) = ([0], Vec::new());
                stream.recv_exact(&mut len).await?;
                stream.recv_payload(usize::from(len[0]), MAX_GREETING, &mut payload).await?;
                return Ok(payload);
            }
        }
        Err::<_, Box<dyn Error>>("the network stopped".into())
    };
    let received = tokio::time::timeout(PATIENCE, received).await??;
    println!("alice read {:?}", String::from_utf8_lossy(&received));

    bob.shutdown().await;
    alice.shutdown().await;
    Ok(())
}
