//! What the benchmarks count, and what becomes of the counts: samples come from a guest, figures with
//! their spread, slopes and ratios go to people (a table) and to programs (JSON).
//!
//! Nothing here waits for anything: the programs below `bin` measure and print.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod burst;
mod image;
mod mesh;
mod operation;
mod report;
mod sample;
mod statistics;
mod table;

pub use burst::{Burst, BurstFigure, BurstSample, Way};
pub use image::{BootSample, ImageReport, MemoryFigure, Part, Stage, StageFigure};
pub use mesh::{MeshFigure, MeshReport};
pub use operation::{Expected, Operation, Subject, UnknownOperation};
pub use report::{Count, Figure, Missing, Ratio, Report, Violation};
pub use sample::{Sample, Word, is_housekeeping};
pub use statistics::{Spread, slope};
