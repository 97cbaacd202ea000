//! `curve` and `whatif`: what a tenant's page cache is worth to it.

use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::{ArgGroup, Args};
use justitia_api::Status;
use justitia_api::escape::plain_lines;
use justitia_cache::serve::Size;
use justitia_share::Weight;
use justitia_view::curve::{BLOCK, curve_report};
use justitia_view::explain::{find, nearest};
use justitia_view::whatif::{Change, Forecast, text, whatif as forecast};

use crate::agent::{ConfigArgs, ask_agent, unanswered};
use justitia_common::command::out;

/// Plot the miss ratio of a tenant by the size of its page cache.
///
/// The running agent samples accesses through the page cache; the curve shows which part of them would come from the disk.
/// Below the plot are the miss ratios at half, the same and twice the size that it has now. A curve reflects the last
/// minutes.
#[derive(Args)]
pub(crate) struct Curve {
    /// Its name as `justitia status` shows it, its cgroup's path, the end of that, or any part that only one has
    tenant: String,
    /// The curve as JSON: `points` are sizes in bytes and miss ratios
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Forecast hit ratios and disk reads of a tenant and its siblings for another weight or another size of page cache.
///
/// Nothing is changed. The forecast uses the miss-ratio curves that `justitia curve` plots.
///
/// Examples: `justitia whatif db --weight 400`, `justitia whatif db --size 2G`.
#[derive(Args)]
#[command(group(ArgGroup::new("change").required(true).args(["weight", "size"])))]
pub(crate) struct Whatif {
    /// Its name as `justitia status` shows it, its cgroup's path, the end of that, or any part that only one has
    tenant: String,
    /// The weight to assume, 1 to 10000
    #[arg(long, value_parser = weight)]
    weight: Option<Weight>,
    /// The size of page cache to assume (512M, 2GiB; 0: none at all)
    #[arg(long)]
    size: Option<Size>,
    /// The forecasts as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn weight(text: &str) -> Result<Weight, String> {
    let number = text.parse::<u64>().ok();
    number
        .and_then(|number| Weight::try_from(number).ok())
        .ok_or_else(|| "expected a weight from 1 to 10000".to_owned())
}

pub(crate) fn curve(args: &Curve) -> anyhow::Result<ExitCode> {
    let (status, index) = asked(&args.config, &args.tenant)?;
    let report = status.tenants.get(index).map(curve_report);
    let report = report.transpose().map_err(|why| anyhow!(why))?;
    let Some(report) = report else {
        bail!("no tenant")
    };
    if args.json {
        out::line(out::json(&report)?);
    } else {
        out::print(plain_lines(&report.text()));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn whatif(args: &Whatif) -> anyhow::Result<ExitCode> {
    let change = match (args.weight, args.size) {
        (Some(weight), _) => Change::Weight(weight),
        (None, Some(size)) => Change::Size(size.0),
        (None, None) => bail!("expected --weight or --size"),
    };
    let (status, index) = asked(&args.config, &args.tenant)?;
    let found: Vec<Forecast> = forecast(&status, index, change, BLOCK);
    if args.json {
        out::line(out::json(&found)?);
    } else {
        out::print(plain_lines(&text(&status, index, change, &found)));
    }
    Ok(ExitCode::SUCCESS)
}

/// What the agent tells, and which of its tenants is meant.
fn asked(config: &ConfigArgs, name: &str) -> anyhow::Result<(Status, usize)> {
    let socket = config.load()?.socket;
    let status = ask_agent(&socket).map_err(|error| unanswered(&socket, &error))?;
    match find(&status, name) {
        Ok(index) => Ok((status, index)),
        Err(paths) if paths.is_empty() => bail!(
            "no tenant is called {name:?}; the nearest are\n  {}",
            nearest(&status, name).join("\n  ")
        ),
        Err(paths) => bail!("{name:?} could be any of\n  {}", paths.join("\n  ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_cgroups() {
        assert!(weight("0").is_err() && weight("10001").is_err() && weight("400").is_ok());
    }
}
