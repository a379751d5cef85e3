//! What this node hands out of models: streams answered, models announced.
//!
//! A watcher reads the list of models whenever it changes and keeps the shared ones: they are provided to the swarm's
//! table of holders and named in announcements, as offers without loaded layers. Streams of plane `blob` are answered
//! from [`HomeShelf`], which looks the list up for every request, so that `shoal model share --off` holds at once.
//!
//! Limits: streams at a time by the governor ([`Resource::Uploads`]), beyond which a stream is closed and the puller asks
//! another node; [`MAX_ANNOUNCED`] models in announcements, the rest is found by id only. Headers of
//! shared files are read in a process of their own ([`crate::header`]), once for each model that is whole or has its header.

use std::{
    collections::{BTreeSet, HashMap, hash_map},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use p2p::{
    Governor, Stream,
    blob::{Form, Pace, serve::Limits},
    wire::{
        announce::{MAX_HIDDEN, MAX_NAME, Offer, is_describable},
        control::MAX_POSITIONS,
    },
};
use scheduler::{
    Holding, ModelId, NodeId,
    capability::{MAX_LAYERS, MAX_MS},
    governor::{Resource, Scope},
};
use tokio::{sync::watch, task::spawn_blocking, time::sleep};

use super::Announcing;
use crate::{
    content::{self, HomeShelf},
    daemon::serve::Pulls,
    header::Header,
    library::Entry,
    reports::{ContentStatus, SharedModel},
};

/// Shared models in an announcement: some 130 bytes each, every few seconds, to everybody.
const MAX_ANNOUNCED: usize = 8;
/// How often the list is looked at; the time of its last change, that is.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Headers of shared models; a model's bytes never change.
type Headers = HashMap<ModelId, Header>;

/// The uploads under way.
#[derive(Clone)]
pub(crate) struct Uploads {
    shelf: Arc<HomeShelf>,
    limits: Arc<Limits>,
    governor: Governor,
}

impl Uploads {
    /// From the library below `home`, all together at most so fast, under `governor`.
    pub fn new(home: PathBuf, bytes_per_s: Option<u64>, governor: Governor) -> Self {
        let limits = Limits { pace: Arc::new(Pace::new(bytes_per_s)), ..Limits::default() };
        Self { shelf: Arc::new(HomeShelf::new(home)), limits: Arc::new(limits), governor }
    }

    /// Whether pulls of the model are answered from here.
    pub async fn shares(&self, model: ModelId) -> bool {
        let shelf = self.shelf.clone();
        spawn_blocking(move || shelf.is_shared(model)).await.unwrap_or(false)
    }

    /// Bytes sent so far.
    pub fn sent_bytes(&self) -> u64 {
        self.limits.pace.taken_bytes()
    }

    /// Streams being answered.
    pub fn running(&self) -> usize {
        self.governor.used(Resource::Uploads, Scope::Node) as usize
    }

    /// Answers a stream, on which groups travel in this form, in a task of its own; closes it when there are too many.
    pub fn answer(&self, from: NodeId, stream: Stream, form: Form) {
        let seat = match self.governor.take_for(from, Resource::Uploads, 1) {
            Ok(seat) => seat,
            Err(refused) => return tracing::debug!(%from, %refused, "too many pull from here"),
        };
        let (shelf, limits) = (self.shelf.clone(), self.limits.clone());
        tokio::spawn(async move {
            match p2p::blob::serve(stream, form, shelf, &limits).await {
                Ok(served) => tracing::debug!(%from, bytes = served.bytes, "a pull ended"),
                Err(error) => tracing::debug!(%from, %error, "a pull broke"),
            }
            drop(seat);
        });
    }
}

/// What is shared, for as long as a receiver lives: a new value whenever the list has changed.
pub(crate) fn watch_list(home: PathBuf) -> watch::Receiver<Vec<Offer>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut seen: Option<SystemTime> = None;
        let mut known: Headers = HashMap::new();
        loop {
            let list = home.join("models.json");
            let read = spawn_blocking({
                let (home, mut known) = (home.clone(), std::mem::take(&mut known));
                move || {
                    let changed = std::fs::metadata(list).and_then(|meta| meta.modified()).ok();
                    let read = (changed != seen).then(|| (changed, offers(&home, &mut known)));
                    (known, read)
                }
            });
            let (headers, read) = read.await.unwrap_or_default();
            known = headers;
            if let Some((changed, (offers, all))) = read {
                // A pull that goes on changes a file, not the list: then it is read again.
                seen = changed.filter(|_| all);
                sender.send_if_modified(|known| {
                    let news = *known != offers;
                    *known = offers;
                    news
                });
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                () = sender.closed() => return,
            }
        }
    });
    receiver
}

/// The shared models below `home` whose headers are here, and whether all of them are.
fn offers(home: &Path, known: &mut Headers) -> (Vec<Offer>, bool) {
    let shared = match content::shared(home) {
        Ok(shared) => shared,
        Err(error) => {
            tracing::warn!(%error, "the list of models cannot be read: nothing is shared");
            return (Vec::new(), false);
        }
    };
    let offers: Vec<Offer> = shared.iter().filter_map(|(model, entry)| offer(*model, entry, known)).collect();
    known.retain(|model, _| shared.iter().any(|(shared, _)| shared == model));
    let complete = offers.len() == shared.len();
    (offers, complete)
}

/// A model as it is announced, if its header is here and says what others would believe.
fn offer(model: ModelId, entry: &Entry, known: &mut Headers) -> Option<Offer> {
    let header = match known.entry(model) {
        hash_map::Entry::Occupied(known) => known.into_mut(),
        hash_map::Entry::Vacant(new) => new.insert(Header::of_file(&entry.path).ok()?),
    };
    let info = header.info(0, String::new()).ok()?;
    let num_layers = Some(header.num_layers()).filter(|n| (1..=MAX_LAYERS).contains(n))?;
    let hidden = u32::try_from(info.hidden).ok().filter(|n| (1..=MAX_HIDDEN).contains(n))?;
    let context = header.trained().ok()?.clamp(1, MAX_POSITIONS as usize) as u32;
    let name = entry.name.chars().take(MAX_NAME).collect();
    let costs = header.costs().filter(|costs| is_describable(costs)).cloned();
    Some(Offer { model, name, num_layers, hidden, context, file_bytes: entry.bytes, costs })
}

impl Announcing {
    /// The list has changed: provides what is new on it, takes back what is gone.
    pub(crate) async fn shared_changed(&mut self) {
        let offers = self.shared.borrow_and_update().clone();
        let now: BTreeSet<ModelId> = offers.iter().map(|offer| offer.model).collect();
        let before = std::mem::replace(&mut self.provided, now.clone());
        for model in before.difference(&now) {
            self.node.network.withdraw(*model).await;
        }
        for model in now.difference(&before) {
            if let Err(error) = self.node.network.provide(*model).await {
                tracing::warn!(%model, %error, "others will not find this node as its holder");
            }
        }
    }

    /// Adds what is shared to what is announced. A model that is served is named already.
    pub(crate) fn name_shared(&self, holdings: &mut Vec<Holding>, offers: &mut Vec<Offer>) {
        for offer in self.shared.borrow().iter().take(MAX_ANNOUNCED) {
            if holdings.iter().any(|holding| holding.model == offer.model) {
                continue;
            }
            holdings.push(Holding {
                model: offer.model,
                loaded: Vec::new(),
                on_disk: Vec::new(),
                // It computes nothing of it, which is as good as never.
                decode_ms: MAX_MS,
                prefill_ms: MAX_MS,
                visit_ms: MAX_MS,
                queue_ms: 0.0,
                load_ms: MAX_MS,
                active: 0,
                batch_knee: 1,
                kv_bytes: 0,
            });
            offers.push(offer.clone());
        }
    }

    /// What is handed out and fetched, for `status`.
    pub(crate) fn content_status(&self, pulls: &Pulls) -> ContentStatus {
        let shared = |offer: &Offer| SharedModel {
            name: offer.name.clone(),
            id: content::hex(offer.model),
            bytes: offer.file_bytes,
        };
        ContentStatus {
            shared: self.shared.borrow().iter().map(shared).collect(),
            uploads: self.uploads.running(),
            uploaded_bytes: self.uploads.sent_bytes(),
            pulls: pulls.running(),
            downloaded_bytes: pulls.pace.taken_bytes(),
            liars: pulls.liars.count(),
        }
    }
}
