//! Bounds on what metadata may claim, so that a hostile file cannot make the executor allocate absurdly.
//!
//! Each is a few times what the largest published model needs; a claim beyond is refused as malformed.

/// Decoder layers.
pub const LAYERS: usize = 1024;
/// Width of the residual stream.
pub const HIDDEN: usize = 1 << 16;
/// Query heads.
pub const HEADS: usize = 1024;
/// Width of one head.
pub const HEAD_DIM: usize = 1024;
/// Width of all query heads together.
pub const QUERIES: usize = 1 << 17;
/// Width of what all layers together read of a token itself.
pub const PER_LAYER: usize = 1 << 17;
/// Streams of residual rows.
pub const STREAMS: usize = 16;
/// Width of a feed-forward network.
pub const FEED_FORWARD: usize = 1 << 17;
/// Rows of the embedding table.
pub const VOCAB: usize = 1 << 20;
/// Positions of the training context.
pub const CONTEXT: usize = 1 << 27;
/// Values of the state of a delta net or of Mamba2.
pub const STATE: usize = 1 << 23;
/// Experts of a layer.
pub const EXPERTS: usize = 1024;
