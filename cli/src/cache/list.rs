//! `justitia cache list`.

use super::client::send;
use clap::Args;
use justitia_cache::serve::ControlRequest;
use justitia_common::command::{flat, out};
use justitia_view::table::{known, table};
use serde_json::Value;
use std::path::PathBuf;

/// List the disks that are served, or should be, with their images and addresses.
#[derive(Args)]
pub(super) struct List {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

pub(super) fn list(args: &List) -> anyhow::Result<()> {
    let listed = send(args.control.as_deref(), &ControlRequest::List).map_err(flat)?;
    if args.json {
        out::line(out::json(&listed)?);
    } else {
        out::print(shown(&listed));
    }
    Ok(())
}

fn shown(listed: &Value) -> String {
    let disks: Vec<&Value> = listed.as_array().into_iter().flatten().collect();
    if disks.is_empty() {
        return "no disk: name one in the configuration and reload it, or add one: `justitia cache set disk --help`\n"
            .to_owned();
    }
    let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
    let columns = "VM|DISK|>SIZE|MODE|IMAGE|STATE";
    let rows = disks.iter().map(|disk| {
        let state = match (&disk["unserved"], disk["read_only"] == true) {
            (Value::String(why), _) => format!("not served: {why}"),
            (_, true) => "read-only".to_owned(),
            _ => "in use".to_owned(),
        };
        let size = known(disk["size_bytes"].as_u64());
        let [vm, name, mode, image] = ["vm", "name", "mode", "image"].map(|key| text(&disk[key]));
        vec![vm, name, size, mode, image, state]
    });
    let addresses = disks.iter().flat_map(|disk| {
        let addresses = disk["addresses"].as_array().into_iter().flatten();
        addresses.map(|address| vec![text(&disk["name"]), text(address)])
    });
    let where_ = "DISK|ADDRESS";
    format!("{}\n{}", table(columns, rows), table(where_, addresses))
}
