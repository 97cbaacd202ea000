//! The lab's runner in the guest. It is of no use outside.

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("serve") => match justitia_lab::guest::serve() {
            Ok(()) => std::process::ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("justitia-lab-guest: {error:#}");
                std::process::ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!(
                "justitia-lab-guest runs inside the lab's virtual machines; see `justitia-lab --help`"
            );
            std::process::ExitCode::FAILURE
        }
    }
}
