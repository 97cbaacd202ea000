//! Compiles the eBPF programs in `src/bpf/` with clang. They are loaded at run time with the
//! running kernel's type offsets put in, so the same objects serve every kernel.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

const OBJECTS: [&str; 3] = ["account", "evict", "shared"];

fn main() -> ExitCode {
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("justitia-kernel: {why}");
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    println!("cargo:rerun-if-changed=src/bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let out = variable("OUT_DIR")?;
    // libbpf's own headers, from the crate that carries it.
    let headers = variable("DEP_BPF_INCLUDE")?;
    let arch = match variable("CARGO_CFG_TARGET_ARCH")?.to_str() {
        Some("x86_64") => "x86",
        Some("aarch64") => "arm64",
        other => {
            return Err(format!(
                "expected x86_64 or aarch64 to build eBPF probes for, found {other:?}"
            ));
        }
    };
    for name in OBJECTS {
        let object = out.join(format!("{name}.bpf.o"));
        let mut command = Command::new(&clang);
        command
            .args([
                "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror",
            ])
            .arg(format!("-D__TARGET_ARCH_{arch}"))
            .arg("-I")
            .arg(&headers)
            .arg("-c")
            .arg(format!("src/bpf/{name}.bpf.c"))
            .arg("-o")
            .arg(&object);
        run(
            &mut command,
            "clang",
            "install clang 14 or newer (Debian: apt-get install clang)",
        )?;
        strip(&object);
    }
    Ok(())
}

/// Removes what only a debugger reads; types (BTF) stay. Objects work without this, ten times
/// larger.
fn strip(object: &Path) {
    for name in ["llvm-strip", "llvm-strip-14"] {
        let done = Command::new(name).arg("-g").arg(object).status();
        if done.is_ok_and(|status| status.success()) {
            return;
        }
    }
}

fn variable(name: &str) -> Result<PathBuf, String> {
    std::env::var_os(name)
        .map(PathBuf::from)
        .ok_or_else(|| format!("expected cargo to set {name}, found nothing"))
}

fn run(command: &mut Command, program: &str, help: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| {
        format!(
            "run {:?}: {error}; the eBPF probes need {program}: {help}, or set CLANG to its path",
            command.get_program()
        )
    })?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "{command:?} failed: {status}; its messages stand above"
        ))
    }
}
