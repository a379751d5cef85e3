//! Joins a swarm inside another program, and asks the node that runs there.
//!
//! `cargo run -p shoal-node --example join [CODE]`
#![forbid(unsafe_code)]

use node::embedded::{self, EmbeddedNode};

fn main() -> node::Result<()> {
    if embedded::is_worker() {
        return embedded::work();
    }
    let home = std::env::temp_dir().join(format!("shoal-example-{}", std::process::id()));
    let node =
        EmbeddedNode::join(&home, ["--ask-only".into()].into_iter().chain(std::env::args_os().skip(1)))?;
    let network = node.status()?.network;
    println!("this program is the node {}, reached as {}", network.node, network.reached.class);
    node.leave()?;
    Ok(std::fs::remove_dir_all(&home)?)
}
