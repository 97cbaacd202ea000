//! Boots a guest with one ext4 disk at `/dev/vda` and runs a script in it, from standard input or
//! the arguments: `cargo run -p justitia-lab --example sh -- 'uname -a'`.

use std::io::Read;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use justitia_lab::vm::{DiskSpec, Vm, VmSpec};

fn main() -> Result<ExitCode> {
    let mut script = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    if script.is_empty() {
        std::io::stdin().read_to_string(&mut script)?;
    }
    let begin = Instant::now();
    let kernel = std::env::var("KERNEL").unwrap_or_else(|_| "6.12".to_owned());
    let Ok(kernel) = kernel.parse();
    let vm = Vm::boot(&VmSpec {
        kernel,
        disks: vec![DiskSpec::ext4(4 << 30)],
        ..VmSpec::default()
    })?;
    eprintln!(
        "{} under {}, up after {:.1} s",
        vm.guest().kernel(),
        vm.accelerator(),
        begin.elapsed().as_secs_f64()
    );
    let result = vm.guest().sh_within(&script, Duration::from_secs(300))?;
    print!("{}", result.stdout);
    eprint!("{}", result.stderr);
    Ok(u8::try_from(result.status).map_or(ExitCode::FAILURE, ExitCode::from))
}
