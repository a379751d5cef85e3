//! What a node announces about itself to the swarm, signed with its key.
//!
//! ```text
//!  "sha2" | node | operator? | sequence | region | access, up, down | draining | class
//!         | offers: model, name, sizes, speeds, load, ranges, costs? | links | addresses | ttl | agent | signature (64 bytes)
//! ```
//!
//! Costs of layers are a table of the kinds of layers and the runs of layers of one kind, in the order of the layers:
//! 32 bytes a kind and 3 a run, some 150 bytes for a Gemma of 26 layers.
//!
//! A node's coordinate ([`scheduler::coordinate`]) travels as the last link, to a name that no key has: the sixteen bytes of
//! `PLACE`, three axes and the height as `f32`, with the relative error as the round trip. A node that knows nothing of
//! coordinates passes over it as over any node that it does not know.
//!
//! What a node that chooses its layers itself has room for travels in the same way, before the coordinate: the sixteen bytes of
//! `ROOM`, the bytes as `u64`, the layers as `u32`, the number of the offer as `u16`, two zero bytes; the round trip is 0.
//!
//! The signature covers everything before it, under the domain `shoal/announce/2`. A node that forwards an announcement
//! forwards these bytes, so it means the same to all who hear it. A replay is recognized by its sequence number,
//! which the view of the swarm compares; a node counts on from above its last after a restart.
//!
//! Limits: [`MAX_ANNOUNCEMENT`] bytes, [`MAX_LINKS`] links, the bounds of [`scheduler::capability`] for the numbers.
//! [`seal`] tells a node when it says too much; [`open`] is the only way in for what strangers say.

use scheduler::capability::{MAX_HOLDINGS, MAX_LAYERS, MAX_MS, MAX_RANGES};
use scheduler::coordinate::{AXES, Coordinate};
use scheduler::layer_cost::{LayerCost, LayerCosts};
use scheduler::{Capability, Claim, Holding, LayerRange, ModelId, NodeId, OperatorId};

use super::Malformed;
use super::cursor::{Reader, Writer};
use super::fields::{MAX_POSITIONS, read_addresses, read_range, write_addresses, write_range};
use crate::identity::{Identity, verify};

/// Longest announcement, bytes; what gossip forwards. A longer one is dropped unread.
pub const MAX_ANNOUNCEMENT: usize = 16 << 10;
/// Most measured links; a node with more peers names its nearest.
pub const MAX_LINKS: usize = 32;
/// How the name of the link begins that is a coordinate.
const PLACE: &[u8; 16] = b"shoal/coordinate";
/// How the name of the link begins that is a room.
const ROOM: &[u8; 16] = b"shoal/place-room";
/// Longest life of an announcement, ms: two minutes, after which who fell silent is forgotten.
pub const MAX_TTL_MS: u32 = 120_000;
/// Longest name of a model, bytes.
pub const MAX_NAME: usize = 64;
/// Longest name of a program, bytes.
pub const MAX_AGENT: usize = 64;
/// Widest hidden state, values; above any published one.
pub const MAX_HIDDEN: u32 = 1 << 17;
/// Largest file of a model, bytes: 16 TiB.
pub const MAX_FILE_BYTES: u64 = 1 << 44;

/// Kinds of layers one description may tell apart; a model with more is announced without one.
pub const MAX_KINDS: usize = 16;

const MAGIC: [u8; 4] = *b"sha2";
const DOMAIN: &str = "shoal/announce/2";
/// Smallest encoding of an offer with its holding, bytes.
const SMALLEST_OFFER: usize = 32 + 2 + 3 * 4 + 8 + 5 * 8 + 2 * 4 + 8 + 2 * 2 + 1;
/// Bytes of a kind of layer.
const KIND: usize = 2 * 8 + 4 * 4;

/// How exact a node's results are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Class {
    /// Bit for bit those of the numeric profile `d1`: checked by digest.
    D1 = 0,
    /// Close to them: checked by tolerance.
    Approx = 1,
}

/// What a model is, as one of its holders says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Which model.
    pub model: ModelId,
    /// What people call it, at most [`MAX_NAME`] bytes without control characters.
    pub name: String,
    /// Its layers, 1 to [`MAX_LAYERS`].
    pub num_layers: u32,
    /// Values of its hidden state, 1 to [`MAX_HIDDEN`].
    pub hidden: u32,
    /// Positions served at most, 1 to [`MAX_POSITIONS`].
    pub context: u32,
    /// Bytes of its file, at most [`MAX_FILE_BYTES`].
    pub file_bytes: u64,
    /// What its layers cost, at most [`MAX_KINDS`] kinds of them; `None` where the speaker cannot say. Its layers are
    /// [`num_layers`](Self::num_layers), the values at a boundary [`hidden`](Self::hidden).
    pub costs: Option<LayerCosts>,
}

/// Whether an announcement has room for a description: at most [`MAX_KINDS`] kinds of layers.
pub fn is_describable(costs: &LayerCosts) -> bool {
    costs.kinds().len() <= MAX_KINDS
}

/// A measured round trip.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Between the announcing node and this one.
    pub to: NodeId,
    /// How long, ms, 0 to [`MAX_MS`].
    pub rtt_ms: f64,
}

/// What a node that chooses its layers itself has room for: who plans for the swarm may count on it. Of a node that says
/// none, the layers are those that its owner named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlaceRoom {
    /// Of the model of this one of the offers, counted from 0.
    pub offer: u16,
    /// So many layers, 1 to all of them.
    pub layers: u32,
    /// Weights of so many bytes.
    pub bytes: u64,
}

/// What a node is about to announce.
#[derive(Clone, PartialEq, Debug)]
pub struct Draft {
    /// Its numbers; `claim.node` is the sealing identity's.
    pub claim: Claim,
    /// How exact it computes.
    pub class: Class,
    /// One for each of `claim.holdings`, in that order, of the same model.
    pub offers: Vec<Offer>,
    /// Round trips it measured itself, one per peer, at most [`MAX_LINKS`], one less with a coordinate and with each room.
    pub links: Vec<Link>,
    /// Where it is.
    pub coordinate: Option<Coordinate>,
    /// What it may hold of models of which it chooses the layers itself, one for an offer at most, in their order. Each is what it may
    /// hold beside what it holds of the others now: memory that is free is in all of them.
    pub rooms: Vec<PlaceRoom>,
    /// Where it can be reached, as a `Contact` of the control plane has them.
    pub addresses: Vec<String>,
    /// The announcement is void after this long, ms; 1 to [`MAX_TTL_MS`].
    pub ttl_ms: u32,
    /// Program and version, at most [`MAX_AGENT`] bytes without control characters.
    pub agent: String,
}

/// A node's announcement: its signature fits, its numbers can be true.
#[derive(Clone, PartialEq, Debug)]
pub struct Announcement {
    /// The numbers, and who speaks.
    pub capability: Capability,
    /// How exact it computes.
    pub class: Class,
    /// One for each holding of the capability, in that order, of the same model.
    pub offers: Vec<Offer>,
    /// Round trips it says it measured, one per peer.
    pub links: Vec<Link>,
    /// Where it says it is.
    pub coordinate: Option<Coordinate>,
    /// What it says it may hold, see [`Draft::rooms`].
    pub rooms: Vec<PlaceRoom>,
    /// Where it says it can be reached.
    pub addresses: Vec<String>,
    /// Void this long after it was heard first, ms.
    pub ttl_ms: u32,
    /// Program and version.
    pub agent: String,
}

impl Announcement {
    /// Who speaks.
    pub fn node(&self) -> NodeId {
        self.capability.node()
    }

    /// The same said again, as number `sequence`.
    #[cfg(feature = "net")]
    pub(crate) fn numbered(self, sequence: u64) -> Option<Self> {
        let claim = Claim { sequence, ..self.capability.claim().clone() };
        Some(Self { capability: Capability::try_from(claim).ok()?, ..self })
    }

    /// What it says of `model`.
    pub fn offer(&self, model: ModelId) -> Option<&Offer> {
        self.offers.iter().find(|offer| offer.model == model)
    }
}

/// The operator of a node that names none: the node.
pub fn own_operator(node: NodeId) -> OperatorId {
    OperatorId::new(*node.as_bytes())
}

/// Writes and signs `draft` as the announcement of `identity`.
///
/// # Errors
/// When [`open`] would refuse the result: a number beyond its bound, or more than [`MAX_ANNOUNCEMENT`] bytes.
pub fn seal(draft: &Draft, identity: &Identity) -> Result<Vec<u8>, Malformed> {
    if draft.claim.node != identity.node() {
        return Err(Malformed("announcement: node"));
    }
    let mut to = Writer::new();
    write(draft, &mut to)?;
    let signature = identity.sign(DOMAIN, to.as_bytes());
    to.bytes(&signature);
    let bytes = to.finish();
    open(&bytes).map(|_| bytes)
}

/// Reads an announcement and checks its signature.
///
/// # Errors
/// When the bytes are too many or not one announcement, the signature is not that of the node within, or a number
/// cannot be.
pub fn open(bytes: &[u8]) -> Result<Announcement, Malformed> {
    if bytes.len() > MAX_ANNOUNCEMENT {
        return Err(Malformed("announcement: length"));
    }
    let (body, signature) = bytes.split_last_chunk().ok_or(Malformed("truncated"))?;
    let mut from = Reader::new(body);
    let announcement = read(&mut from)?;
    from.finish()?;
    if !verify(announcement.node(), DOMAIN, body, signature) {
        return Err(Malformed("announcement: signature"));
    }
    Ok(announcement)
}

/// Reads an announcement whose signature was checked before.
#[cfg(feature = "net")]
pub(crate) fn read_again(bytes: &[u8]) -> Option<Announcement> {
    let (body, _) = bytes.split_last_chunk::<64>()?;
    read(&mut Reader::new(body)).ok()
}

fn write(draft: &Draft, to: &mut Writer) -> Result<(), Malformed> {
    let claim = &draft.claim;
    let same = |(offer, holding): (&Offer, &Holding)| offer.model == holding.model;
    if draft.offers.len() != claim.holdings.len() || !draft.offers.iter().zip(&claim.holdings).all(same) {
        return Err(Malformed("announcement: offers"));
    }
    to.bytes(&MAGIC).bytes(claim.node.as_bytes());
    let other = (claim.operator != own_operator(claim.node)).then_some(claim.operator);
    to.bool(other.is_some());
    if let Some(operator) = other {
        to.bytes(operator.as_bytes());
    }
    to.u64(claim.sequence).u16(claim.region).f64(claim.access_ms);
    to.f64(claim.up_bytes_per_ms).f64(claim.down_bytes_per_ms).bool(claim.draining).u8(draft.class as u8);
    to.count(draft.offers.len());
    for (offer, holding) in draft.offers.iter().zip(&claim.holdings) {
        write_offer(offer, holding, to)?;
    }
    let said = draft.rooms.iter().copied().map(room_link).chain(draft.coordinate.map(as_link));
    let links: Vec<Link> = draft.links.iter().copied().chain(said).collect();
    to.list(&links, |to, link| {
        to.bytes(link.to.as_bytes()).f64(link.rtt_ms);
    });
    write_addresses(&draft.addresses, to);
    to.u32(draft.ttl_ms).text(&draft.agent);
    Ok(())
}

fn write_offer(offer: &Offer, holding: &Holding, to: &mut Writer) -> Result<(), Malformed> {
    to.bytes(offer.model.as_bytes()).text(&offer.name);
    to.u32(offer.num_layers).u32(offer.hidden).u32(offer.context).u64(offer.file_bytes);
    let ms = [holding.decode_ms, holding.prefill_ms, holding.visit_ms, holding.queue_ms, holding.load_ms];
    ms.into_iter().for_each(|ms| {
        to.f64(ms);
    });
    to.u32(holding.active).u32(holding.batch_knee).u64(holding.kv_bytes);
    for ranges in [&holding.loaded, &holding.on_disk] {
        to.list(ranges, |to, &range| write_range(range, to));
    }
    to.bool(offer.costs.is_some());
    let Some(costs) = &offer.costs else { return Ok(()) };
    if (costs.num_layers(), costs.boundary_values(0)) != (offer.num_layers, offer.hidden) {
        return Err(Malformed("announcement: costs"));
    }
    write_costs(costs, to)
}

fn write_costs(costs: &LayerCosts, to: &mut Writer) -> Result<(), Malformed> {
    let kinds = costs.kinds();
    if kinds.len() > MAX_KINDS {
        return Err(Malformed("announcement: kinds of layers"));
    }
    to.list(&kinds, |to, kind| {
        to.u64(kind.row_work).u64(kind.weight_bytes).u32(kind.seen_work).u32(kind.window.unwrap_or(0));
        to.u32(kind.state_bytes).u32(kind.position_bytes);
    });
    to.list(&costs.runs(), |to, (layer, len)| {
        let kind = kinds.iter().position(|kind| kind == layer).unwrap_or(0);
        to.u8(kind as u8).u16(*len as u16);
    });
    Ok(())
}

/// The costs of `num_layers` layers. Kinds stand in the order of their first layers and differ, and so do neighboring
/// runs: there is one encoding of a description.
fn read_costs(from: &mut Reader<'_>, num_layers: u32, hidden: u32) -> Result<LayerCosts, Malformed> {
    const BAD: Malformed = Malformed("announcement: costs");
    let kinds = from.list(MAX_KINDS, KIND, |from| {
        let (row_work, weight_bytes, seen_work, window) =
            (from.u64()?, from.u64()?, from.u32()?, from.u32()?);
        let (state_bytes, position_bytes) = (from.u32()?, from.u32()?);
        let window = (window > 0).then_some(window);
        Ok(LayerCost { row_work, weight_bytes, seen_work, window, state_bytes, position_bytes })
    })?;
    let runs = from.list(MAX_LAYERS as usize, 3, |from| Ok((from.u8()?, from.u16()?)))?;
    let mut layers = Vec::with_capacity(num_layers as usize);
    for (kind, len) in runs {
        let kind = kinds.get(usize::from(kind)).ok_or(BAD)?;
        if len == 0 || layers.last() == Some(kind) || layers.len() + usize::from(len) > num_layers as usize {
            return Err(BAD);
        }
        layers.extend(std::iter::repeat_n(*kind, usize::from(len)));
    }
    let complete = layers.len() == num_layers as usize;
    let costs = LayerCosts::new(layers, hidden).map_err(|_| BAD)?;
    if complete && costs.kinds() == kinds { Ok(costs) } else { Err(BAD) }
}

fn read(from: &mut Reader<'_>) -> Result<Announcement, Malformed> {
    if from.array()? != MAGIC {
        return Err(Malformed("announcement: magic"));
    }
    let node = NodeId::new(from.array()?);
    let operator = match from.bool()? {
        false => own_operator(node),
        true => Some(OperatorId::new(from.array()?))
            .filter(|&operator| operator != own_operator(node))
            .ok_or(Malformed("announcement: operator"))?,
    };
    let (sequence, region, access_ms) = (from.u64()?, from.u16()?, from.f64()?);
    let (up_bytes_per_ms, down_bytes_per_ms, draining) = (from.f64()?, from.f64()?, from.bool()?);
    let class = match from.u8()? {
        0 => Class::D1,
        1 => Class::Approx,
        _ => return Err(Malformed("announcement: class")),
    };
    let offers = from.list(MAX_HOLDINGS, SMALLEST_OFFER, read_offer)?;
    let (offers, holdings): (Vec<Offer>, Vec<Holding>) = offers.into_iter().unzip();
    let (links, rooms, coordinate) = read_links(from, node)?;
    let fits = |room: &PlaceRoom| {
        let offer: Option<&Offer> = offers.get(usize::from(room.offer));
        offer.is_some_and(|offer| (1..=offer.num_layers).contains(&room.layers))
    };
    if !rooms.iter().all(fits) {
        return Err(Malformed("announcement: room"));
    }
    let addresses = read_addresses(from)?;
    let ttl_ms = from.u32()?;
    if !(1..=MAX_TTL_MS).contains(&ttl_ms) {
        return Err(Malformed("announcement: ttl"));
    }
    let agent = read_label(from, MAX_AGENT)?;
    let claim = Claim {
        node,
        operator,
        sequence,
        region,
        access_ms,
        up_bytes_per_ms,
        down_bytes_per_ms,
        draining,
        holdings,
    };
    let capability = Capability::try_from(claim).map_err(|_| Malformed("announcement: claim"))?;
    Ok(Announcement { capability, class, offers, links, coordinate, rooms, addresses, ttl_ms, agent })
}

fn read_offer(from: &mut Reader<'_>) -> Result<(Offer, Holding), Malformed> {
    let model = ModelId::new(from.array()?);
    let name = read_label(from, MAX_NAME)?;
    let (num_layers, hidden, context, file_bytes) = (from.u32()?, from.u32()?, from.u32()?, from.u64()?);
    let sound = (1..=MAX_LAYERS).contains(&num_layers)
        && (1..=MAX_HIDDEN).contains(&hidden)
        && (1..=MAX_POSITIONS).contains(&context)
        && file_bytes <= MAX_FILE_BYTES;
    if !sound {
        return Err(Malformed("announcement: model"));
    }
    let (decode_ms, prefill_ms, visit_ms) = (from.f64()?, from.f64()?, from.f64()?);
    let (queue_ms, load_ms) = (from.f64()?, from.f64()?);
    let (active, batch_knee, kv_bytes) = (from.u32()?, from.u32()?, from.u64()?);
    let mut ranges = || -> Result<Vec<LayerRange>, Malformed> {
        from.list(MAX_RANGES, 8, |from| read_range(from, num_layers))
    };
    let (loaded, on_disk) = (ranges()?, ranges()?);
    let costs = if from.bool()? { Some(read_costs(from, num_layers, hidden)?) } else { None };
    let holding = Holding {
        model,
        loaded,
        on_disk,
        decode_ms,
        prefill_ms,
        visit_ms,
        queue_ms,
        load_ms,
        active,
        batch_knee,
        kv_bytes,
    };
    Ok((Offer { model, name, num_layers, hidden, context, file_bytes, costs }, holding))
}

/// A coordinate in the shape of a link.
fn as_link(coordinate: Coordinate) -> Link {
    let (at, height, error) = coordinate.parts();
    let mut name = [0; 32];
    name[..16].copy_from_slice(PLACE);
    for (bytes, ms) in name[16..].chunks_exact_mut(4).zip(at.into_iter().chain([height])) {
        bytes.copy_from_slice(&ms.to_le_bytes());
    }
    Link { to: NodeId::new(name), rtt_ms: f64::from(error) }
}

/// The coordinate that a link is, if its name begins like one.
fn as_coordinate(link: &Link) -> Option<Result<Coordinate, Malformed>> {
    let numbers = link.to.as_bytes().strip_prefix(PLACE)?;
    let mut ms = numbers.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let mut next = || ms.next().unwrap_or(f32::NAN);
    let at: [f32; AXES] = std::array::from_fn(|_| next());
    let height = next();
    // One encoding: what an `f32` cannot hold was not written by `as_link`.
    let error = link.rtt_ms as f32;
    let exact = f64::from(error) == link.rtt_ms;
    let coordinate = Coordinate::new(at, height, error).filter(|_| exact);
    Some(coordinate.ok_or(Malformed("announcement: coordinate")))
}

/// A room in the shape of a link.
fn room_link(room: PlaceRoom) -> Link {
    let mut name = [0; 32];
    name[..16].copy_from_slice(ROOM);
    name[16..24].copy_from_slice(&room.bytes.to_le_bytes());
    name[24..28].copy_from_slice(&room.layers.to_le_bytes());
    name[28..30].copy_from_slice(&room.offer.to_le_bytes());
    Link { to: NodeId::new(name), rtt_ms: 0.0 }
}

/// The room that a link is, if its name begins like one.
fn as_room(link: &Link) -> Option<Result<PlaceRoom, Malformed>> {
    let numbers = link.to.as_bytes().strip_prefix(ROOM)?;
    let room = numbers.split_first_chunk().and_then(|(bytes, rest)| {
        let (layers, rest) = rest.split_first_chunk()?;
        let (offer, _) = rest.split_first_chunk()?;
        let (bytes, layers) = (u64::from_le_bytes(*bytes), u32::from_le_bytes(*layers));
        Some(PlaceRoom { offer: u16::from_le_bytes(*offer), layers, bytes })
    });
    // One encoding: what `room_link` would write.
    let written = |room: &PlaceRoom| room_link(*room) == *link && link.rtt_ms.is_sign_positive();
    Some(room.filter(written).ok_or(Malformed("announcement: room")))
}

/// What a node says of its peers and, at the end, of itself.
type Links = (Vec<Link>, Vec<PlaceRoom>, Option<Coordinate>);

/// A node says one thing of each peer, and nothing of itself but, at the end, what it may hold and where it is.
fn read_links(from: &mut Reader<'_>, me: NodeId) -> Result<Links, Malformed> {
    let mut links = from.list(MAX_LINKS, 40, |from| {
        let link = Link { to: NodeId::new(from.array()?), rtt_ms: from.f64()? };
        let sound = link.to != me && (0.0..=MAX_MS).contains(&link.rtt_ms);
        sound.then_some(link).ok_or(Malformed("announcement: link"))
    })?;
    let mut ends: Vec<NodeId> = links.iter().map(|link| link.to).collect();
    ends.sort_unstable();
    if ends.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Malformed("announcement: links"));
    }
    let coordinate = links.last().and_then(as_coordinate).transpose()?;
    links.truncate(links.len() - usize::from(coordinate.is_some()));
    let rooms: Vec<_> = links.iter().rev().map_while(as_room).collect::<Result<_, _>>()?;
    let rooms: Vec<PlaceRoom> = rooms.into_iter().rev().collect();
    links.truncate(links.len() - rooms.len());
    if !rooms.is_sorted_by(|one, next| one.offer < next.offer) {
        return Err(Malformed("announcement: rooms"));
    }
    let begins = |link: &Link, with: &[u8]| link.to.as_bytes().starts_with(with);
    if links.iter().any(|link| begins(link, PLACE) || begins(link, ROOM)) {
        return Err(Malformed("announcement: coordinate"));
    }
    Ok((links, rooms, coordinate))
}

/// Text that ends up on screens: nothing that moves a cursor, is invisible or turns the direction of reading.
fn read_label(from: &mut Reader<'_>, most: usize) -> Result<String, Malformed> {
    let text = from.text(most)?;
    let hidden = |c| matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    if text.chars().any(|c| c.is_control() || hidden(c)) {
        return Err(Malformed("announcement: text"));
    }
    Ok(text.to_owned())
}
