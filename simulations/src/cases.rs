//! Reads published routing and allocation cases (JSON) into the scheduler's own types.
//!
//! The schema, in short: a routing case has `num_layers`, `nodes` with `ranges`, `ms_per_layer`, `visit_ms` and
//! `max_layers`, an `rtt_ms` matrix (or an `rtt_model` of regions, access and single pairs), and optionally a
//! `requester`, `boomerang`, `layer_weight` and `charge_entry_exit`. It is priced for one decoded token, so that the
//! router's milliseconds are the case's.

use std::collections::BTreeSet;
use std::fmt;

use scheduler::place::{Ground, Placement, Site};
use scheduler::snapshot::{Host, Links};
use scheduler::{
    Boomerang, LayerRange, LayerSet, ModelId, NodeId, Pipeline, Request, Segment, Shape, Snapshot,
};
use serde_json::{Value, json};

/// What is wrong with a case: its path in the JSON and what was expected.
#[derive(Debug)]
pub struct BadCase(String);

impl fmt::Display for BadCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadCase {}

pub(crate) fn bad(what: &str, value: &Value) -> BadCase {
    BadCase(format!("expected {what}, found {value}"))
}

pub(crate) fn number(value: &Value) -> Result<f64, BadCase> {
    value.as_f64().ok_or_else(|| bad("a number", value))
}

pub(crate) fn index(value: &Value) -> Result<u32, BadCase> {
    value.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| bad("a small whole number", value))
}

pub(crate) fn list(value: &Value) -> Result<&Vec<Value>, BadCase> {
    value.as_array().ok_or_else(|| bad("a list", value))
}

pub(crate) fn text(value: &Value) -> Result<&str, BadCase> {
    value.as_str().ok_or_else(|| bad("a string", value))
}

/// A routing case, ready to route.
pub struct RoutingCase {
    /// Its name in the file.
    pub id: String,
    /// Its hosts and links.
    pub snapshot: Snapshot,
    /// What is asked.
    pub request: Request,
    names: Names,
}

/// Node names of a case; a node's number is its rank among them, so answers do not depend on the order in the file.
pub struct Names(Vec<String>);

impl Names {
    pub(crate) fn read(nodes: &[Value]) -> Result<Self, BadCase> {
        let mut names: Vec<String> =
            nodes.iter().map(|node| text(&node["id"]).map(str::to_owned)).collect::<Result<_, _>>()?;
        names.sort();
        Ok(Self(names))
    }

    pub(crate) fn id(&self, name: &str) -> Result<NodeId, BadCase> {
        let rank = self.0.binary_search_by(|probe| probe.as_str().cmp(name));
        rank.map(|rank| NodeId::numbered(rank as u64)).map_err(|_| BadCase(format!("unknown node {name}")))
    }

    fn name(&self, id: NodeId) -> &str {
        let rank = (0..self.0.len()).find(|&rank| NodeId::numbered(rank as u64) == id);
        rank.map_or("?", |rank| &self.0[rank])
    }

    /// Segments as the answer format wants them.
    pub fn segments(&self, segments: &[Segment]) -> Value {
        segments
            .iter()
            .map(|s| json!({"node": self.name(s.node), "start": s.layers.start(), "end": s.layers.end()}))
            .collect()
    }
}

impl RoutingCase {
    /// Reads one element of the `routing` list.
    ///
    /// # Errors
    /// [`BadCase`] when a field is missing or makes no sense.
    pub fn read(case: &Value) -> Result<Self, BadCase> {
        let nodes = list(&case["nodes"])?;
        let names = Names::read(nodes)?;
        let num_layers = index(&case["num_layers"])?;
        let mut deny = BTreeSet::new();
        let mut hosts = Vec::with_capacity(nodes.len());
        for node in nodes {
            let host = read_host(node, &names)?;
            if !node["alive"].as_bool().unwrap_or(true) {
                deny.insert(host.id);
            }
            hosts.push(host);
        }
        let links = read_links(case, nodes.len())?;
        let weight = match &case["layer_weight"] {
            Value::Null => None,
            weights => Some(list(weights)?.iter().map(number).collect::<Result<_, _>>()?),
        };
        let snapshot = Snapshot::new(ModelId::default(), num_layers, weight, hosts, &links)
            .map_err(|error| BadCase(error.to_string()))?;
        let mut request = Request::new(NodeId::default(), Shape::ONE_TOKEN);
        request.requester = match &case["requester"] {
            Value::Null => None,
            name => Some(names.id(text(name)?)?),
        };
        request.policy.closing_hop = case["charge_entry_exit"].as_bool().unwrap_or(false);
        request.policy.boomerang = match &case["boomerang"] {
            Value::Null => None,
            ends => Some(Boomerang { head: index(&ends["head"])?, tail: index(&ends["tail"])? }),
        };
        request.policy.deny = deny;
        request.policy.near_equal = 0.0;
        Ok(Self { id: text(&case["id"])?.to_owned(), snapshot, request, names })
    }

    /// A pipeline in the answer format.
    pub fn path(&self, pipeline: &Pipeline) -> Value {
        self.names.segments(pipeline.segments())
    }
}

/// An allocation case, ready to place.
pub struct AllocationCase {
    /// Its name in the file.
    pub id: String,
    /// Its sites and hops.
    pub ground: Ground,
    names: Names,
}

impl AllocationCase {
    /// Reads one element of the `allocation` list.
    ///
    /// # Errors
    /// [`BadCase`] when a field is missing or makes no sense.
    pub fn read(case: &Value) -> Result<Self, BadCase> {
        let nodes = list(&case["nodes"])?;
        let names = Names::read(nodes)?;
        let mut sites = Vec::with_capacity(nodes.len());
        for node in nodes {
            sites.push(Site {
                id: names.id(text(&node["id"])?)?,
                layer_ms: number(&node["ms_per_layer"])?,
                cap_mid: index(&node["cap_mid"])?,
                cap_first: index(&node["cap_first"])?,
                cap_last: index(&node["cap_last"])?,
                cap_both: index(&node["cap_both"])?,
            });
        }
        let hops = read_matrix(list(&case["rtt_ms"])?, nodes.len())?;
        let num_layers = index(&case["model"]["num_layers"])?;
        let ground = Ground::new(num_layers, number(&case["concurrency"])?, sites, &hops)
            .map_err(|error| BadCase(error.to_string()))?;
        Ok(Self { id: text(&case["id"])?.to_owned(), ground, names })
    }

    /// A placement in the answer format.
    pub fn pipelines(&self, placement: &Placement) -> Value {
        placement.pipelines.iter().map(|pipeline| self.names.segments(pipeline.segments())).collect()
    }
}

fn read_host(node: &Value, names: &Names) -> Result<Host, BadCase> {
    let mut ranges = Vec::new();
    for range in list(&node["ranges"])? {
        let range =
            LayerRange::new(index(&range[0])?, index(&range[1])?).ok_or_else(|| bad("a range", range))?;
        ranges.push(range);
    }
    let mut host =
        Host::new(names.id(text(&node["id"])?)?, LayerSet::new(ranges), number(&node["ms_per_layer"])?);
    host.visit_ms = node["visit_ms"].as_f64().unwrap_or(0.0);
    host.kv_bytes = node["max_layers"].as_u64();
    host.access.region = node["region"].as_u64().unwrap_or(0) as u16;
    host.access.ms = node["access_ms"].as_f64().unwrap_or(0.0);
    Ok(host)
}

fn read_links(case: &Value, n: usize) -> Result<Links, BadCase> {
    if let Value::Array(rows) = &case["rtt_ms"] {
        return read_matrix(rows, n).map(Links::Matrix);
    }
    let model = &case["rtt_model"];
    let rows = list(&model["base_ms"])?;
    let base_ms: Vec<f64> = read_matrix(rows, rows.len())?;
    let mut measured = Vec::new();
    for pair in model["overrides"].as_array().into_iter().flatten() {
        let (i, j, ms) = (index(&pair[0])?, index(&pair[1])?, number(&pair[2])?);
        measured.extend([(i, j, ms), (j, i, ms)]);
    }
    Ok(Links::Regions { base_ms, regions: rows.len(), measured })
}

/// Row by row; null means the pair cannot talk.
pub(crate) fn read_matrix(rows: &[Value], n: usize) -> Result<Vec<f64>, BadCase> {
    let mut ms = Vec::with_capacity(n * n);
    for row in rows {
        for value in list(row)? {
            ms.push(if value.is_null() { f64::INFINITY } else { number(value)? });
        }
    }
    Ok(ms)
}
