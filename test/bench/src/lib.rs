//! Evaluation of the benchmarks: turns samples of a guest into figures with their spread, slopes and ratios, as a table
//! and as JSON. The programs below `bin` measure and print.
#![forbid(unsafe_code)]

mod burst;
mod cpu;
mod directory;
mod image;
mod io;
mod memory;
mod neighbour;
mod operation;
mod pause;
mod progress;
mod report;
mod report_text;
mod requests;
mod sample;
mod scale;
mod statistics;
mod table;
mod timed;

pub use burst::{Binder, Burst, BurstFigure, BurstSample, Comparison, Until, Way};
pub use cpu::children_cpu_ms;
pub use directory::{DirectoryLimit, create_directory};
pub use image::{BootSample, ImageReport, MemoryFigure, Part, Stage, StageFigure};
pub use io::{Access, IoFigure, IoRatio, IoReport, IoSample, Target};
pub use memory::memory;
pub use neighbour::{NeighbourFigure, NeighbourRatio, NeighbourReport, NeighbourSample, Tenant};
pub use operation::{Expected, Operation, Subject};
pub use pause::{Changed, PauseFigure, PauseReport, PauseSample};
pub use progress::Progress;
pub use report::{Count, Figure, MissingSample, Report};
pub use requests::request_name;
pub use sample::{DiskWork, Sample, Word, is_housekeeping, print};
pub use scale::{ScaleFigure, ScaleReport, ScaleSample};
pub use statistics::{Spread, slope};
pub use table::VERDICT;
pub use timed::{TimeFigure, TimeReport, TimeSample, Timed};
