#!/usr/bin/perl

# The tests of the digests of bodies by their meaning: see t/digest/run.

use strict;
use warnings;

use lib 't/lib';

use Programs;

run_programs('digest');
