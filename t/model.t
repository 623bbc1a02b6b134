#!/usr/bin/perl

# The protocol of two tiers, by Spin: see model/run.

use strict;
use warnings;

use FindBin;

exec "$FindBin::Bin/../model/run" or die "model/run: $!\n";
