#!/usr/bin/perl

# The tests of store/ and digest/ in C: see t/unit/run.

use strict;
use warnings;

use lib 't/lib';

use Programs;

run_programs('unit');
