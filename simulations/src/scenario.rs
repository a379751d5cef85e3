//! Scenarios as data: what swarm, what load, what goes wrong. Read from `scenarios/*.toml`.

use std::fmt;

use toml::Table;

use crate::engine::Engine;

/// Who is in the swarm, what they are asked, and what happens to them. Times in virtual seconds.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Shown in the report.
    pub name: String,
    /// Machines that hold layers.
    pub nodes: u32,
    /// Machines that ask; they hold nothing unless `local_layer_ms` is set.
    pub requesters: u32,
    /// Regions of `scale::REGIONS_MS` in use, 1 to 5.
    pub regions: u32,
    /// Layers of the model.
    pub layers: u32,
    /// What the machines are made of.
    pub hardware: Hardware,
    /// What they are asked.
    pub demand: Demand,
    /// What goes wrong.
    pub faults: Faults,
    /// Share of the machines that requesters are connected to at first; they meet the others one by one.
    pub met: f64,
    /// Whether ours knows true regions, access times and distances, instead of what machines can measure.
    pub oracle: bool,
    /// Keep the first and last layer at the requester (every requester then holds them).
    pub boomerang: bool,
    /// A requester's own speed if it can run everything, ms per layer.
    pub local_layer_ms: Option<f64>,
    /// Instead of the default of [`scheduler::RoutePolicy::near_equal`].
    pub near_equal: Option<f64>,
}

/// Machines and the network between them.
#[derive(Clone, PartialEq, Debug)]
pub struct Hardware {
    /// Fastest and slowest machine, ms per layer and token.
    pub layer_ms: (f64, f64),
    /// Least and most layers a machine has room for.
    pub room: (u32, u32),
    /// Mean of the exponentially distributed share of a hop that is a machine's own, ms.
    pub access_ms: f64,
    /// Jitter of a hop: up to this share is added.
    pub jitter: f64,
    /// Slowest and fastest uplink of a machine, Mbit/s; downlinks are five times as wide.
    pub uplink_mbit: (f64, f64),
    /// How machines compute: `batching`, true unless said, and `gain`.
    pub engine: Engine,
}

/// The requests of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Demand {
    /// Requests per second, Poisson.
    pub rate: f64,
    /// A crowd: from this second, for that many seconds, so many times the rate.
    pub flash: Option<(f64, f64, f64)>,
    /// Prompt and answer, tokens.
    pub tokens: (u32, u32),
    /// How far prompts and answers spread around `tokens`, which are their medians: deviation of the logarithm.
    pub tokens_spread: (f64, f64),
    /// Deviation of the time between arrivals over its mean: 1 is Poisson, above that they come in bursts.
    pub burst: f64,
    /// What a request must keep to count as goodput: ms until the first token, and ms for a further one on average.
    pub target: (f64, f64),
    /// How long requests arrive.
    pub seconds: f64,
}

/// Machines that come, go, fail or lie.
#[derive(Clone, PartialEq, Debug)]
pub struct Faults {
    /// Share of machines that leave per hour; they come back after a minute on average.
    pub churn_per_hour: f64,
    /// Share of machines that announce a fifth of their true time.
    pub liars: f64,
    /// Made-up identities, as many times the machines: each announces all layers at next to no time and answers nothing.
    pub sybils: f64,
    /// Share of machines that claim their true time at first and less and less of it, a fifth at the end.
    pub poisoners: f64,
    /// The first region and the others hear nothing of each other: from this second, for that many seconds.
    pub partition: Option<(f64, f64)>,
    /// Share of machines that say that they are where another one is.
    pub coordinate_liars: f64,
    /// Share of machines that turn ten times slower in the middle of the run, and back after half of the rest.
    pub gray: f64,
    /// Share of machines that join only during the first quarter of the run, one by one.
    pub joins: f64,
}

/// What is wrong with a scenario file.
#[derive(Debug)]
pub struct BadScenario(String);

impl fmt::Display for BadScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadScenario {}

/// Reading a layer's weights beside the arithmetic of a row is 13 to 1 on the processors that were measured.
const GAIN: f64 = 14.0;

struct Reader(Table);

impl Reader {
    fn flag(&mut self, key: &str, default: bool) -> Result<bool, BadScenario> {
        let wrong = |other| BadScenario(format!("{key} should be true or false, not {other:?}"));
        self.0.remove(key).map_or(Ok(default), |value| value.as_bool().ok_or_else(|| wrong(value)))
    }

    fn number(&mut self, key: &str, default: Option<f64>) -> Result<f64, BadScenario> {
        let found = match self.0.remove(key) {
            Some(toml::Value::Float(value)) => Some(value),
            Some(toml::Value::Integer(value)) => Some(value as f64),
            Some(other) => return Err(BadScenario(format!("{key} should be a number, not {other:?}"))),
            None => None,
        };
        let value = found.or(default).ok_or_else(|| BadScenario(format!("{key} is missing")))?;
        if value.is_finite() && value >= 0.0 {
            Ok(value)
        } else {
            Err(BadScenario(format!("{key} cannot be {value}")))
        }
    }

    fn optional(&mut self, key: &str) -> Result<Option<f64>, BadScenario> {
        if self.0.contains_key(key) { self.number(key, None).map(Some) } else { Ok(None) }
    }

    fn list<const N: usize>(&mut self, key: &str) -> Result<Option<[f64; N]>, BadScenario> {
        let Some(value) = self.0.remove(key) else { return Ok(None) };
        let wrong = || BadScenario(format!("{key} should be {N} numbers"));
        let items = value.as_array().ok_or_else(wrong)?;
        let numbers: Option<Vec<f64>> =
            items.iter().map(|item| item.as_float().or(item.as_integer().map(|i| i as f64))).collect();
        numbers.and_then(|numbers| numbers.try_into().ok()).map(Some).ok_or_else(wrong)
    }
}

impl Scenario {
    /// Reads a scenario.
    ///
    /// # Errors
    /// [`BadScenario`] names the key that is missing, unknown or senseless.
    pub fn parse(text: &str) -> Result<Self, BadScenario> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| BadScenario(error.to_string()))?;
        let mut reader = Reader(table);
        let name = match reader.0.remove("name") {
            Some(toml::Value::String(name)) => name,
            _ => return Err(BadScenario("name is missing".into())),
        };
        let pair = |found: Option<[f64; 2]>, key: &str| {
            found.map(|[a, b]| (a, b)).ok_or_else(|| BadScenario(format!("{key} is missing")))
        };
        let layer_ms = pair(reader.list("layer_ms")?, "layer_ms")?;
        let room = pair(reader.list("room")?, "room")?;
        let tokens = pair(reader.list("tokens")?, "tokens")?;
        let spread = reader.list("tokens_spread")?.unwrap_or([0.0, 0.0]);
        let flash = reader.list::<3>("flash")?.map(|[from, long, times]| (from, long, times));
        let uplink = pair(reader.list("uplink_mbit")?.or(Some([100.0, 1_000.0])), "uplink_mbit")?;
        let target = reader.list("target")?.unwrap_or([f64::INFINITY; 2]);
        let boomerang = reader.flag("boomerang", false)?;
        let oracle = reader.flag("oracle", false)?;
        let batches = reader.flag("batching", true)?;
        let engine = Engine { batches, gain: reader.number("gain", Some(GAIN))? };
        let local = reader.number("local_layer_ms", Some(0.0))?;
        let near_equal = reader.optional("near_equal")?;
        let scenario = Self {
            name,
            nodes: reader.number("nodes", None)? as u32,
            requesters: reader.number("requesters", None)?.max(1.0) as u32,
            regions: (reader.number("regions", Some(1.0))? as u32).clamp(1, 5),
            layers: reader.number("layers", None)? as u32,
            hardware: Hardware {
                layer_ms,
                room: (room.0 as u32, room.1 as u32),
                access_ms: reader.number("access_ms", Some(1.0))?,
                jitter: reader.number("jitter", Some(0.1))?,
                uplink_mbit: uplink,
                engine,
            },
            demand: Demand {
                rate: reader.number("rate", None)?,
                flash,
                tokens: (tokens.0 as u32, (tokens.1 as u32).max(1)),
                tokens_spread: (spread[0], spread[1]),
                target: (target[0], target[1]),
                burst: reader.number("burst", Some(1.0))?,
                seconds: reader.number("seconds", None)?,
            },
            faults: Faults {
                churn_per_hour: reader.number("churn_per_hour", Some(0.0))?,
                liars: reader.number("liars", Some(0.0))?,
                sybils: reader.number("sybils", Some(0.0))?,
                poisoners: reader.number("poisoners", Some(0.0))?,
                partition: reader.list("partition")?.map(|[from, long]| (from, long)),
                coordinate_liars: reader.number("coordinate_liars", Some(0.0))?,
                gray: reader.number("gray", Some(0.0))?,
                joins: reader.number("joins", Some(0.0))?.min(1.0),
            },
            met: reader.number("met", Some(1.0))?,
            oracle,
            boomerang,
            local_layer_ms: (local > 0.0).then_some(local),
            near_equal,
        };
        if let Some(key) = reader.0.keys().next() {
            return Err(BadScenario(format!("{key} is not a setting")));
        }
        if scenario.layers < 3
            || room.0 > room.1
            || layer_ms.0 > layer_ms.1
            || !(0.0 < uplink.0 && uplink.0 <= uplink.1)
            || engine.gain < 1.0
            || target.iter().any(|most| most.is_nan() || *most <= 0.0)
            || scenario
                .faults
                .partition
                .is_some_and(|(from, long)| from.is_nan() || long.is_nan() || from.min(long) < 0.0)
            || (scenario.faults.partition.is_some() && scenario.regions < 2)
        {
            let keys = "layers, room, layer_ms, uplink_mbit, gain, target or partition";
            return Err(BadScenario(format!("{keys} make no sense")));
        }
        Ok(scenario)
    }
}
