//! What a storm consists of, drawn from its seed.

use scheduler::rng::Rng;

/// Everything a seed decides about a storm, printed with every failure. Times in ms of true time.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The seed itself.
    pub seed: u64,
    /// Who is in the swarm.
    pub size: Size,
    /// How requests are routed.
    pub routing: Routing,
    /// What happens to messages.
    pub weather: Weather,
    /// What happens to machines.
    pub faults: Faults,
    /// Share of machines behind a NAT.
    pub nat: f64,
    /// Machines that relay for those who cannot reach each other; without any such pairs cannot talk.
    pub relays: usize,
    /// Clocks run off by up to this share, start anywhere, and with `jumps` leap ahead once.
    pub drift: f64,
    /// Clocks leap.
    pub jumps: bool,
    /// What machines claim that is not so.
    pub lies: Lies,
    /// What a machine takes on.
    pub capacity: Capacity,
    /// What requesters ask.
    pub demand: Demand,
    /// Machines are advised to hold other layers.
    pub moves: bool,
    /// Everything heals at this time.
    pub heal_ms: u64,
    /// Tokens that a step drafts at most, of which any beginning may be right; 0 for steps of one token.
    pub drafts: u32,
}

/// The machines of a storm and their model.
#[derive(Clone, PartialEq, Debug)]
pub struct Size {
    /// Machines that serve.
    pub nodes: usize,
    /// Machines that ask; under boomerang they hold the ends.
    pub requesters: usize,
    /// Layers of the model.
    pub layers: u32,
    /// Layers at most of one machine.
    pub room: u32,
    /// Regions in use.
    pub regions: usize,
}

/// What a storm asks of its routes.
#[derive(Clone, PartialEq, Debug)]
pub struct Routing {
    /// Ends stay home.
    pub boomerang: bool,
    /// Follow segments with shadows.
    pub shadows: bool,
    /// Those only keep the log: they are given no work before they take over.
    pub lazy: bool,
}

/// What the network of a storm does to messages.
#[derive(Clone, PartialEq, Debug)]
pub struct Weather {
    /// Streams: losses are retransmitted and order is kept, at the price of delay. Otherwise datagrams.
    pub reliable: bool,
    /// Share of messages lost (or retransmitted).
    pub loss: f64,
    /// Share of messages that come twice (datagrams only).
    pub duplicate: f64,
    /// Up to this is added to a hop.
    pub jitter_ms: u64,
    /// Share of announcements that miss one receiver.
    pub gossip_loss: f64,
    /// Longest way of an announcement.
    pub gossip_ms: u64,
}

/// What happens to the machines of a storm.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Crashes; half of them are silent (power), half close their connections. Machines come back.
    pub crashes: usize,
    /// Machines stopped for some seconds.
    pub freezes: usize,
    /// Machines turned twenty times slower.
    pub grays: usize,
    /// Times some machines are cut off.
    pub partitions: usize,
    /// Share of partitions that cut one direction only.
    pub one_way: f64,
}

/// Machines of a storm that announce more than they are.
#[derive(Clone, PartialEq, Debug)]
pub struct Lies {
    /// Share of machines that claim a fifth of their time and load.
    pub boasters: f64,
    /// Share of machines that claim layers they do not hold.
    pub pretenders: f64,
}

/// What a machine of a storm serves at once.
#[derive(Clone, PartialEq, Debug)]
pub struct Capacity {
    /// Sessions a machine serves at once, and waiting asks.
    pub slots: u32,
    /// Room for keys and values, layers x positions.
    pub kv: u64,
}

/// What the requesters of a storm ask.
#[derive(Clone, PartialEq, Debug)]
pub struct Demand {
    /// Conversations of each requester, turns of each.
    pub conversations: usize,
    /// Turns of a conversation; each carries the whole history.
    pub turns: usize,
    /// Tokens of a user's message and of an answer.
    pub tokens: (u32, u32),
    /// Share of requests the user cancels.
    pub cancels: f64,
}

impl Options {
    /// Draws a storm. Every kind of fault is absent in over half of the seeds, so that each also meets the others
    /// alone and in pairs.
    pub fn draw(seed: u64) -> Self {
        let mut c = Rng::new(seed ^ 0x5701_2026);
        let layers = 4 + c.below(5) as u32;
        let maybe = |c: &mut Rng, most: f64| if c.happens(0.4) { most * c.unit() } else { 0.0 };
        let some = |c: &mut Rng, most: usize| if c.happens(0.4) { 1 + c.below(most) } else { 0 };
        let moves = c.happens(0.2);
        // A move takes half a minute from the first advice.
        let longer = if moves { 60_000 } else { 0 };
        Self {
            seed,
            size: Size {
                nodes: 3 + c.below(6),
                requesters: 1 + c.below(3),
                layers,
                room: (layers / 2).max(2) + c.below(layers as usize / 2) as u32,
                regions: 1 + c.below(3),
            },
            routing: Routing { boomerang: c.happens(0.6), shadows: c.happens(0.6), lazy: c.happens(0.3) },
            weather: Weather {
                reliable: c.happens(0.5),
                loss: maybe(&mut c, 0.05),
                duplicate: maybe(&mut c, 0.05),
                jitter_ms: maybe(&mut c, 60.0) as u64,
                gossip_loss: maybe(&mut c, 0.3),
                gossip_ms: 50 + maybe(&mut c, 2_000.0) as u64,
            },
            faults: Faults {
                crashes: some(&mut c, 4),
                freezes: some(&mut c, 3),
                grays: some(&mut c, 2),
                partitions: some(&mut c, 2),
                one_way: c.unit(),
            },
            nat: maybe(&mut c, 0.8),
            relays: c.below(3),
            drift: maybe(&mut c, 0.02),
            jumps: c.happens(0.2),
            lies: Lies { boasters: maybe(&mut c, 0.5), pretenders: maybe(&mut c, 0.4) },
            capacity: Capacity {
                slots: 2 + c.below(5) as u32,
                kv: u64::from(layers) * (60 + c.below(200) as u64),
            },
            demand: Demand {
                conversations: 1 + c.below(2),
                turns: 1 + c.below(3),
                tokens: (2 + c.below(6) as u32, 4 + c.below(9) as u32),
                cancels: maybe(&mut c, 0.2),
            },
            moves,
            heal_ms: longer + 10_000 + c.below(15_000) as u64,
            // Drawn last: without drafts a seed is the storm that it was before there were any.
            drafts: some(&mut c, 6) as u32,
        }
    }

    /// A calm swarm under `seed`: the sizes of the draw, no faults.
    pub fn calm(seed: u64) -> Self {
        let drawn = Self::draw(seed);
        Self {
            weather: Weather {
                loss: 0.0,
                duplicate: 0.0,
                jitter_ms: 0,
                gossip_loss: 0.0,
                gossip_ms: 200,
                ..drawn.weather
            },
            faults: Faults { crashes: 0, freezes: 0, grays: 0, partitions: 0, ..drawn.faults },
            nat: 0.0,
            relays: 2,
            drift: 0.0,
            jumps: false,
            lies: Lies { boasters: 0.0, pretenders: 0.0 },
            demand: Demand { cancels: 0.0, ..drawn.demand },
            moves: false,
            drafts: 0,
            ..drawn
        }
    }

    /// An hour without faults over a bad network: 3 % loss, 30 ms jitter, answers of 200 tokens all the time.
    pub fn soak(seed: u64, reliable: bool) -> Self {
        let calm = Self::calm(seed);
        Self {
            size: Size { nodes: 8, requesters: 3, regions: 2, ..calm.size },
            weather: Weather { reliable, loss: 0.03, jitter_ms: 30, gossip_loss: 0.03, ..calm.weather },
            capacity: Capacity { slots: 8, kv: 1 << 16 },
            demand: Demand { conversations: 120, turns: 1, tokens: (8, 200), ..calm.demand },
            heal_ms: 3_600_000,
            drafts: 0,
            ..calm
        }
    }
}
