//! `shoal man`: a manual page per command.

use std::fs;

use clap::CommandFactory;
use serde_json::json;

use crate::{
    Result,
    cli::{Cli, ManArgs},
    output::{self, say},
};

pub(super) fn run(args: &ManArgs) -> Result<()> {
    let broken = |e| shard::Error::io(&args.folder, e);
    fs::create_dir_all(&args.folder).map_err(broken)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).map_err(broken)?;
    let pages = fs::read_dir(&args.folder).map_err(broken)?.flatten();
    let pages = pages.filter(|page| page.file_name().to_string_lossy().starts_with("shoal")).count();
    if args.json {
        return output::json_line(&json!({ "folder": args.folder.to_string_lossy(), "pages": pages }));
    }
    say!("{pages} pages in {}; try: man {}/shoal.1", args.folder.display(), args.folder.display());
    Ok(())
}
