"""The Bayes-optimal limit: what a learner who knows all but the teacher's weights reaches."""
