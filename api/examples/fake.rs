//! An API over nothing: a fake model that types, and a fake swarm that loses a node now and then. For work on the page.
//!
//! `cargo run -p shoal-api --example fake [PORT [PAUSE_MS]]`; the token is `fake`. With a pause every answer stands still for so
//! long before its second word, as one does that waits for a slow swarm.

#[path = "../tests/fake/mod.rs"]
mod fake;

use std::sync::Arc;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let number = |at: usize| std::env::args().nth(at).and_then(|number| number.parse::<u64>().ok());
    let port = number(1).and_then(|port| u16::try_from(port).ok()).unwrap_or(8400);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    let config = api::Config { token: Some("fake".into()), ..api::Config::default() };
    let fake = match number(2) {
        Some(ms) => fake::Fake::pausing(1, ms),
        None => fake::Fake::new(),
    };
    let fake = Arc::new(fake);
    tokio::spawn(fake.clone().live());
    let server = api::Server::new(fake, listener, config)?;
    println!("http://{}/#t={}   (token: fake)", server.address(), server.ticket());
    server.run(std::future::pending()).await;
    Ok(())
}
