mod device;
mod gate;
mod hostile;
mod live;
mod rig;
mod truncate;
mod verify;
