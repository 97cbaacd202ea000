//! Static SVG, written by ourselves: colours come from the page's style sheet, so that one drawing
//! serves light, dark and print; every drawing has a title and a description; all text is escaped
//! by the same templates as the page. Plotting crates draw in fixed colours and leave out the rest.

mod bars;
mod class;
mod frame;
mod timeline;
mod variation;

pub(super) use bars::{bars, common_end};
pub(super) use class::{configuration_class, tenant_class};
pub(super) use timeline::{Line, Panel, timeline};
pub(super) use variation::{Bar, variation};
