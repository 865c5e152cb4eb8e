"""The image factory: a release upstream -> an image, built, verified, compared, and promoted or refused.

    policy    `factory.yaml`: which releases to build, how often to look, how many images to keep; and, pure,
              policy, state, what docker has -> the next action; result -> next state
    effects   carries out one action
    factory   decides and acts until nothing is left to do; writes the state before and after each

A release takes these stages, and `refused` can follow each of them with a reason:

    seen -> built (inspected, started, verified; no tag) -> compared (with the current image) -> promoted

The newest release goes first. When it is refused, the next newest that is still newer than the current image
is tried. A candidate gets its tag and its place in the catalog only when it is promoted: it is at least as
fast as the current image, within the interval of the measurement, and answers equally. Then images that no
policy keeps, no catalog names and no container has are removed, by their ids.

Everything is in one file for each image, FIRESTEEL_HOME/factory/NAME.json, which is written before and after
each action. After a crash the same action is decided again, and each may be repeated: a look reads, a build
makes another image without a tag, a comparison starts services under its own names and first stops those
of the one that crashed, a promotion writes the same tag and files again, and an image that is gone needs no
removal. A release at which the factory ended three times is refused.

The factory never removes an image that runs, never pushes, and never changes a service: `upgrade` does that.
"""
