//! The guest's kernel: Debian's stock packages, fetched and unpacked but never installed, or any
//! other kernel by path.

mod archive;
mod bzimage;
mod choice;
mod modules;
mod resolve;

pub use archive::every_series;
pub use choice::KernelChoice;
pub use modules::Modules;
pub use resolve::Kernel;
