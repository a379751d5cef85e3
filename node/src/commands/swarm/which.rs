//! Which models `shoal join` serves: found by file, name or id, and which of their layers.

use std::path::{Path, PathBuf};

use scheduler::{LayerRange, LayerSet, ModelId};
use shard::executor::DeviceName;

use crate::{
    Error, Result,
    catalog::{self, Signed},
    cli::swarm::{Also, JoinArgs},
    content,
    daemon::{Absent, Beside, MOST_BESIDE, Serve, Where},
    header::Header,
    inference::local,
    library::{self, Library},
    model,
    worker::{ExpertShare, Source},
};

/// A model whose file is on this machine.
pub(super) struct Here {
    pub(super) header: Header,
    /// `None` for the one inside the binary.
    pub(super) path: Option<PathBuf>,
}

/// The model to serve, on this machine or not.
pub(super) struct Which {
    pub(super) id: Option<ModelId>,
    pub(super) here: Option<Here>,
    pub(super) absent: Option<Absent>,
}

/// What a model is called that the user names so: where that is no name a catalog's, the list's in the folder `home`, or its file's.
pub(super) fn name_of(model: &str, id: Option<ModelId>, known: &[Signed], home: &Path) -> String {
    let no_name = library::looks_like_a_path(model) || content::parse_id(model).is_some();
    let Some(id) = id.filter(|_| no_name) else { return local::model_name(model) };
    if id == ModelId::new(library::embedded_hash()) {
        return library::DEFAULT_MODEL.to_owned();
    }
    let listed = catalog::find(known, &content::hex(id)).map(|listed| listed.name.clone());
    let own = || {
        let library = Library::load(home).ok()?;
        library.entries().iter().find(|entry| entry.model() == Some(id)).map(|entry| entry.name.clone())
    };
    listed.or_else(own).unwrap_or_else(|| local::model_name(model))
}

/// Finds the model by file, name or id. What is not here, or only in part, is asked of the swarm.
pub(super) fn which(args: &JoinArgs, model: &str, home: &Path, known: &[Signed]) -> Result<Which> {
    let id = content::parse_id(model);
    let embedded = ModelId::new(library::embedded_hash());
    if model == library::DEFAULT_MODEL || id == Some(embedded) {
        let header = Header::read(None)?;
        return Ok(Which { id: Some(embedded), here: Some(Here { header, path: None }), absent: None });
    }
    if library::looks_like_a_path(model) {
        let path = std::path::absolute(model)?;
        let here = Here { header: Header::of_file(&path)?, path: Some(path) };
        return Ok(Which { id: Some(library::id(model)?), here: Some(here), absent: None });
    }
    // The models of this node's folder first; those of the person's own folder are as good.
    for folder in [home.to_owned(), library::home()?] {
        let library = Library::load(&folder)?;
        let Ok(entry) = library.find(model) else { continue };
        let whole = match content::present(&folder, entry)? {
            Some(have) => have.len() == have.groups(),
            None => entry.check_unchanged().map(|()| true)?,
        };
        if whole {
            let here = Here { header: Header::of_file(&entry.path)?, path: Some(entry.path.clone()) };
            return Ok(Which { id: entry.model(), here: Some(here), absent: None });
        }
        let from = entry.from.iter().chain(&args.from).cloned().collect();
        let absent = Absent { id: entry.model(), name: entry.name.clone(), from, ends: args.ends };
        return Ok(Which { id: entry.model(), here: None, absent: Some(absent) });
    }
    let mut absent = Absent { id, name: model.to_owned(), from: args.from.clone(), ends: args.ends };
    if let Some(listed) = catalog::find(known, model) {
        absent.id = listed.model();
        absent.name.clone_from(&listed.name);
        absent.from.extend(listed.mirrors.iter().cloned());
    }
    Ok(Which { id: absent.id, here: None, absent: Some(absent) })
}

/// The models beside the first one.
pub(super) fn beside(
    args: &JoinArgs,
    first: Option<ModelId>,
    home: &Path,
    known: &[Signed],
) -> Result<Vec<Beside>> {
    if args.hold.also.len() > MOST_BESIDE {
        return Err(Error::usage(format!(
            "a node holds at most {MOST_BESIDE} models beside the first: leave out some --also"
        )));
    }
    let one = |also: &Also| {
        let Which { id, here, absent } = which(args, &also.model, home, known)?;
        let num_layers = here.as_ref().map(|here| here.header.num_layers());
        let serve = match (&also.layers, args.hold.ask_only) {
            (_, true) => Serve::These(Vec::new()),
            (Some(layers), false) => these(&also.model, layers.0.clone(), num_layers)?,
            (None, false) => Serve::Scarcest(u32::MAX),
        };
        let name = name_of(&also.model, id, known, home);
        let about = match &here {
            Some(Here { header, .. }) => header.info(header.context(args.engine.ctx)?, name)?,
            None => local::unknown(args.engine.ctx.unwrap_or(model::DEFAULT_CTX), name),
        };
        let place = match (id, here, absent) {
            (_, _, Some(absent)) => Where::Away(absent),
            (Some(id), Some(Here { path, .. }), _) => {
                Where::Here { id, source: path.map_or(Source::Embedded, Source::File) }
            }
            _ => {
                return Err(Error::usage(format!(
                    "nothing is known of {}: say its file or its id",
                    also.model
                )));
            }
        };
        Ok(Beside { place, serve, about })
    };
    let all: Vec<Beside> = args.hold.also.iter().map(one).collect::<Result<_>>()?;
    let mut ids: Vec<ModelId> = all.iter().filter_map(|beside| beside.place.id()).chain(first).collect();
    ids.sort_unstable();
    match ids.windows(2).any(|pair| pair[0] == pair[1]) {
        true => {
            Err(Error::usage("the same model is named twice: one --also for each, and none for --model's"))
        }
        false => Ok(all),
    }
}

/// Layers to serve, of a model with so many where that is known.
pub(super) fn what_to_serve(args: &JoinArgs, known: Option<u32>) -> Result<Serve> {
    let num_layers = known.unwrap_or(u32::MAX);
    let layers = match (&args.hold.layers, args.hold.ask_only) {
        (_, true) => Vec::new(),
        (Some(layers), _) => layers.0.clone(),
        (None, false) => {
            return Ok(Serve::Scarcest(args.hold.max_layers.unwrap_or(num_layers).min(num_layers)));
        }
    };
    these("--layers", layers, Some(num_layers))
}

/// These layers, as `said`, of a model with so many where that is known.
fn these(said: &str, layers: Vec<LayerRange>, known: Option<u32>) -> Result<Serve> {
    let num_layers = known.unwrap_or(u32::MAX);
    match layers.iter().find(|range| range.end() > num_layers) {
        Some(beyond) => Err(Error::usage(format!(
            "{said} {}..{}: the model has layers 0..{num_layers}",
            beyond.start(),
            beyond.end()
        ))),
        None => Ok(Serve::These(LayerSet::new(layers).ranges().to_vec())),
    }
}

/// Which experts are loaded, where not all are.
pub(super) fn experts(args: &JoinArgs, is_here: bool) -> Result<Option<ExpertShare>> {
    let Some(range) = args.hold.experts else { return Ok(None) };
    if !is_here {
        return Err(Error::usage(format!(
            "--experts loads parts of a file that is here: `shoal model pull {}` fetches it",
            args.engine.model()
        )));
    }
    if !matches!(args.engine.device()?, DeviceName::Auto | DeviceName::Cpu) {
        return Err(Error::usage("--experts is for the processor: leave --device out, or say cpu"));
    }
    Ok(Some(ExpertShare { range, from: args.hold.experts_from.clone(), asks: None }))
}
