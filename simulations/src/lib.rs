//! Imagines swarms: thousands of machines in virtual time, driving the scheduler's own code.
//!
//! [`run`](mod@run) takes one [`policy`] through one [`scenario`] on one seed; the same seed draws the same machines,
//! arrivals and faults for every policy, so outcomes compare. [`storm`] tells short stories of few machines message by
//! message, [`byzantine`] plays those who lie about results. [`cases`] reads published routing and allocation cases,
//! [`scale`] draws large swarms for timing, [`near`] is what machines know of distances.
#![forbid(unsafe_code)]

pub mod byzantine;
pub mod cases;
pub mod engine;
pub mod planet;
pub mod policy;
pub mod report;
pub mod run;
pub mod scale;
pub mod scenario;
pub mod storm;
mod timeline;
pub mod world;

pub use world::near;
