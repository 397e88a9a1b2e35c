//! The gateway's view of the mesh: who is there, what policy allows, and which model each executor serves.
//!
//! Three kinds of background tasks write it: [`capability`] and [`policy`] follow their services' watches, and a
//! [`tender`] per executor pings it and loads its model card and tokenizer. [`assess`] turns it into a judgement, and
//! [`balance`] chooses among equals.

mod assess;
mod balance;
mod bundle;
mod capability;
mod follow;
mod model;
mod obstacle;
mod policy;
mod state;
mod tender;

pub use assess::{AssessedExecutor, Assessment, Avoid, Lease, Wanted};
pub use bundle::ActiveBundle;
pub use capability::follow_capability;
pub use model::Model;
pub use obstacle::{Obstacle, ObstacleKind};
pub use policy::follow_policy;
pub use state::{InFlight, MeshView};
pub use tender::tend_executors;
