//! Correction by what applications get: the objective is their bandwidth, device credits and page-cache room
//! are means to it.

/// A factor on a tenant's part of credits and room, found by integration.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Correction {
    /// The logarithm of the factor.
    log: f64,
    /// What its application got of late, and what would have been its part, bytes per second.
    got: f64,
    ideal: f64,
    /// By how much the error of the moment is above that of the mean, on the average.
    skew: f64,
}

/// What brings a correction about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// Limits, in the next interval.
    Credits,
    /// Room for dirty pages: whoever has too many must first be rid of them, which takes seconds, and what is
    /// corrected meanwhile is corrected twice.
    Room,
}

impl Acts {
    /// Part of an error (its logarithm) that is corrected in a second.
    const fn gain(self) -> f64 {
        match self {
            Self::Credits => 0.4,
            Self::Room => 0.2,
        }
    }
}

/// The factor is at most this, and at least that. Who reads again what it has no room for, or writes through a journal
/// for which others wait, may get its part from much less than that of the disk's time.
pub const LARGEST: f64 = 3.0;
const LEAST: f64 = 1.0 / 16.0;
/// Errors below this are noise.
const DEADBAND: f64 = 0.02;
/// So large an error counts at most, so that one odd measurement moves little.
const LARGEST_ERROR: f64 = 0.7;
/// The error of the moment is a logarithm, and tells what to do soon; what to do in the end is told by what was got
/// altogether over about so many seconds beside what would have been the part of it. For bandwidth comes in bursts, and
/// has a mean above that of its logarithm; corrected by that alone the one whose bursts are largest beside its ideal, the
/// lightest, would get a fifth too much. Both count alike. Filling and writing of dirty pages is over by then.
const LONG: f64 = 10.0;
/// By how much the one is above the other on the average over about so many seconds is set aside.
const SKEW: f64 = 20.0;
/// Where room decides, so much of a correction is taken to show in the end. With all of it, what one had too much at first
/// would stay his for long; with nothing, he would have too little for as long.
const EXPECTED: f64 = 0.5;
/// So much counts what was got before a step.
const FORGETS: f64 = 0.2;
/// What is left of a correction after a second in which the tenant did not contend.
const FADES: f64 = 0.8;

impl Correction {
    /// The factor.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.log.exp()
    }

    /// In the last `seconds` the tenant contended: its application got `got`, or `served` with what passes by itself set
    /// aside, and of all that the contending applications got, `ideal` would be its part by weight. `acts` is what
    /// brings a correction about.
    pub fn correct(&mut self, acts: Acts, served: f64, got: f64, ideal: f64, seconds: f64) {
        if ideal <= 0.0 || seconds <= 0.0 {
            return;
        }
        follow(
            &mut self.got,
            got.min((1.0 + LARGEST) * ideal),
            seconds,
            LONG,
        );
        follow(&mut self.ideal, ideal, seconds, LONG);
        let error = match acts {
            Acts::Credits => self.soon(served, ideal, seconds),
            // What shows in a moment is chance, since a journal lets writers through in bursts.
            Acts::Room => -(self.got / self.ideal).ln(),
        };
        if error.abs() < DEADBAND {
            return;
        }
        let before = self.log;
        let step = acts.gain() * seconds.min(1.0) * error.clamp(-LARGEST_ERROR, LARGEST_ERROR);
        self.log = (before + step).clamp(LEAST.ln(), LARGEST.ln());
        if acts == Acts::Room {
            // The mean comes near to what it would be if the factor had been the new one all the time. So what acts late is
            // not corrected until it shows, and what it had too much before that was known is no debt, or half of one.
            self.got *= (EXPECTED * (self.log - before)).exp();
        }
    }

    /// The error where a correction shows at once: that of the moment, but for what it is usually above the one of the mean,
    /// and that of the mean.
    fn soon(&mut self, served: f64, ideal: f64, seconds: f64) -> f64 {
        let lacked = 1.0 - self.got / self.ideal;
        let moment = (ideal / served.max(ideal * 1e-3)).ln();
        let moment = moment.clamp(-LARGEST_ERROR, LARGEST_ERROR);
        let skew = (moment - lacked).clamp(-LARGEST_ERROR, LARGEST_ERROR);
        follow(&mut self.skew, skew, seconds, SKEW);
        moment - self.skew + lacked
    }

    /// The tenant did not contend for `seconds`: what was learnt about it fades.
    pub fn fade(&mut self, seconds: f64) {
        let fades = FADES.powf(seconds);
        self.log *= fades;
        self.skew *= fades;
        self.got = (self.ideal + (self.got - self.ideal) * fades) * fades;
        self.ideal *= fades;
    }

    /// The tenant's part is another one now: what it got before says little of it.
    pub fn step(&mut self) {
        self.skew = 0.0;
        self.got *= FORGETS;
        self.ideal *= FORGETS;
    }
}

/// Brings an average over about `long` seconds up to date.
fn follow(average: &mut f64, now: f64, seconds: f64, long: f64) {
    *average += (now - *average) * (1.0 - (-seconds / long).exp());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Corrects a tenant that is as its application, which got this, for a quarter of a second.
    fn after(correction: &mut Correction, got: f64, ideal: f64) {
        correction.correct(Acts::Credits, got, got, ideal, 0.25);
    }

    #[test]
    fn it_finds_what_a_tenant_lacks_and_stays_in_bounds() {
        // A tenant that gets half of what its credits should give.
        let mut correction = Correction::default();
        for _ in 0..400 {
            let got = 5.0 * correction.factor();
            after(&mut correction, got, 10.0);
        }
        assert!((correction.factor() - 2.0).abs() < 0.05);
        for _ in 0..200 {
            after(&mut correction, 0.0, 10.0);
        }
        assert!((correction.factor() - LARGEST).abs() < 1e-9);
        for _ in 0..200 {
            after(&mut correction, 1e9, 10.0);
        }
        assert!((correction.factor() - LEAST).abs() < 1e-9);
        correction.fade(60.0);
        assert!((correction.factor() - 1.0).abs() < 0.01);
    }

    #[test]
    fn where_room_decides_chance_moves_little() {
        // Now nothing, now twice its part, two seconds each; then half of it.
        let acts = Acts::Room;
        let mut correction = Correction::default();
        let (mut least, mut most) = (f64::MAX, f64::MIN);
        for round in 0..120 {
            let got = if round % 16 < 8 { 0.0 } else { 20.0 };
            correction.correct(acts, got, got, 10.0, 0.25);
            if round >= 60 {
                least = least.min(correction.factor());
                most = most.max(correction.factor());
            }
        }
        assert!(most / least < 1.5, "{least} to {most}");
        let before = correction.factor();
        for _ in 0..60 {
            correction.correct(acts, 5.0, 5.0, 10.0, 0.25);
        }
        assert!(correction.factor() > 1.5 * before, "{correction:?}");
    }

    #[test]
    fn what_room_does_late_is_not_corrected_twice() {
        // Three times its part by each factor, four seconds later.
        let mut correction = Correction::default();
        let mut factors = vec![1.0; 16];
        let mut all = Vec::new();
        for round in 0..400 {
            let got = 30.0 * factors[round];
            correction.correct(Acts::Room, got, got, 10.0, 0.25);
            factors.push(correction.factor());
            all.push(got);
        }
        let least = all.iter().copied().fold(f64::MAX, f64::min);
        assert!(least > 5.0, "{least}");
        let late = &all[160..];
        assert!(late.iter().all(|got| (8.5..11.5).contains(got)), "{late:?}");
    }

    #[test]
    fn after_a_feast_want_is_met_soon() {
        // A minute at five times its part; then nothing.
        let mut correction = Correction::default();
        for _ in 0..240 {
            after(&mut correction, 50.0, 10.0);
        }
        let least = correction.factor();
        for _ in 0..80 {
            after(&mut correction, 0.0, 10.0);
        }
        assert!(correction.factor() > 1.5 * least, "{least} {correction:?}");
    }

    #[test]
    fn what_was_got_of_another_load_is_soon_outweighed() {
        // From a hundred times as much to a smaller part, of which it gets half.
        let mut correction = Correction::default();
        for _ in 0..120 {
            after(&mut correction, 1000.0, 1000.0);
        }
        let mut rested = correction;
        correction.step();
        rested.fade(20.0);
        for one in [&mut correction, &mut rested] {
            for _ in 0..40 {
                after(one, 5.0, 10.0);
            }
            assert!(one.factor() > 1.3, "{one:?}");
        }
    }

    #[test]
    fn who_gets_it_in_bursts_gets_little_more_than_others() {
        // Every eighth interval brings four times what the others do.
        let mut correction = Correction::default();
        let (mut sum, rounds) = (0.0, 4000);
        for round in 0..rounds {
            let got = if round % 8 == 0 { 29.0 } else { 7.25 } * correction.factor();
            after(&mut correction, got, 10.0);
            sum += got;
        }
        let mean = sum / f64::from(rounds);
        // By the logarithm alone it would be 12.6, and with the mean beside it 11.3.
        assert!((9.5..10.7).contains(&mean), "{mean}");
    }
}
