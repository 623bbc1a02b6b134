package Browser;

# Chromium without a window, through its DevTools protocol over a pipe: just what
# the tests here need, with Perl's core modules.
#
#   my $b = Browser->new($scratch_directory, screenshots => $directory);
#   $b->go($url);                 waits for nothing, as a user's click
#   $b->wait_for($js, $what);     until the page says so; dies otherwise
#   $b->js($expression);          its value
#   $b->click($css, times => 2);  mouse events, as a mouse makes them
#   $b->click($b->where($css));   the same, when the page can't be asked any more
#   $b->click($css, ctrl => 1);   with that key held
#   $b->click($css, wait => 1);   until the page has taken notice
#   $b->press('Enter');           keyboard events, where the focus is
#   $b->type($text);
#   $b->back; $b->reload;         reload posts again what was posted
#   $b->javascript(0);            off, for the pages; js() goes on working
#   $b->tab; $b->switch($tab);    a new tab, and back; returns the tab
#   $b->others;                   the tabs that pages have opened, with
#   $b->close_others;             what they have in them: { title, url }
#   $b->before($js);              run it ahead of each page's scripts, until
#   $b->before;                   this
#   $b->phone(1);                 a phone's width, (0) not any more
#   $b->screenshot($name);        if there is a directory for them
#
# No command waits for a page that is being loaded: these tests are about what
# happens meanwhile.

use strict;
use warnings;

use IO::Handle;
use JSON::PP ();
use MIME::Base64 qw(decode_base64);
use POSIX ();
use Stage ();
use Time::HiRes qw(sleep time);

my $json = JSON::PP->new->utf8;
my %key = (Enter  => { key => 'Enter', code => 'Enter', text => "\r",
                       windowsVirtualKeyCode => 13 },
           Escape => { key => 'Escape', code => 'Escape',
                       windowsVirtualKeyCode => 27 });


sub new {
    my ($class, $scratch, %o) = @_;

    # the browser reads commands from its descriptor 3 and writes to 4
    pipe my $in, my $to or die $!;
    pipe my $from, my $out or die $!;

    my $pid = fork // die $!;

    if ($pid == 0) {
        POSIX::setpgid(0, 0);
        $ENV{HOME} = $ENV{XDG_CONFIG_HOME} = $ENV{XDG_CACHE_HOME} = $scratch;

        open STDIN, '<', '/dev/null';
        open STDOUT, '>', "$scratch/chromium.out";
        open STDERR, '>&', \*STDOUT;

        # neither may be overwritten before it is copied
        my @fd = map { POSIX::fcntl($_, POSIX::F_DUPFD(), 10) } $in, $out;
        POSIX::dup2($fd[0], 3);
        POSIX::dup2($fd[1], 4);

        exec 'setpriv', '--pdeathsig', 'TERM', '--',
             'chromium', '--headless=new', '--remote-debugging-pipe',
             "--user-data-dir=$scratch/profile", '--no-first-run', '--no-sandbox',
             '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars',
             '--disable-background-networking', '--disable-component-update',
             '--disable-sync', '--window-size=1000,760', 'about:blank'
             or POSIX::_exit(127);
    }

    POSIX::setpgid($pid, $pid);
    close $in;
    close $out;
    $to->autoflush(1);

    my $self = bless { pid => $pid, to => $to, from => $from, id => 0, buffer => '',
                       scripts => 1, screenshots => $o{screenshots} }, $class;

    local $SIG{PIPE} = 'IGNORE';
    $self->{log} = "$scratch/chromium.out";
    $self->tab;

    return $self;
}


# send(COMMAND, PARAMETERS): doesn't wait for the answer
sub send {
    my ($self, $method, %params) = @_;
    my $session = $method =~ /^Target\./ ? undef : $self->{tab}{session};

    local $SIG{PIPE} = 'IGNORE';

    print { $self->{to} } $json->encode({
        id => ++$self->{id}, method => $method, params => \%params,
        $session ? (sessionId => $session) : (),
    }), "\0" or die "the browser has gone\n";

    return $self->{id};
}


# call(COMMAND, PARAMETERS): the result
sub call {
    my ($self, $method, @params) = @_;
    my $id = $self->send($method, @params);
    my $deadline = time + 180;

    while (1) {
        while ($self->{buffer} =~ s/\A([^\0]*)\0//) {
            my $message = $json->decode($1);

            next if ($message->{id} // 0) != $id;
            die "$method: $message->{error}{message}\n" if $message->{error};
            return $message->{result};
        }

        vec(my $ready = '', fileno $self->{from}, 1) = 1;
        select($ready, undef, undef, $deadline - time) > 0
            or die "$method: no answer\n";
        sysread $self->{from}, $self->{buffer}, 1 << 16, length $self->{buffer}
            or die "the browser has gone\n";
    }
}


sub tab {
    my ($self) = @_;
    my $target = $self->call('Target.createTarget', url => 'about:blank')->{targetId};
    my $session = $self->call('Target.attachToTarget', targetId => $target,
                              flatten => JSON::PP::true)->{sessionId};

    $self->switch({ target => $target, session => $session });
    $self->call('Page.enable');

    return $self->{tab};
}


sub switch {
    my ($self, $tab) = @_;

    $self->{tab} = $tab;
    $self->call('Target.activateTarget', targetId => $tab->{target});
}


sub close_tab {
    my ($self, $tab) = @_;

    $self->call('Target.closeTarget', targetId => $tab->{target});
}


sub others {
    my ($self) = @_;

    return grep { $_->{type} eq 'page' && $_->{targetId} ne $self->{tab}{target}
                  && $_->{url} ne 'about:blank' }
                @{ $self->call('Target.getTargets')->{targetInfos} };
}


sub close_others {
    my ($self) = @_;

    $self->close_tab({ target => $_->{targetId} }) for $self->others;
    $self->switch($self->{tab});
}


sub before {
    my ($self, $js) = @_;

    $self->call('Page.removeScriptToEvaluateOnNewDocument', identifier => $self->{before})
        if defined $self->{before};
    $self->{before} = defined $js
        ? $self->call('Page.addScriptToEvaluateOnNewDocument', source => $js)->{identifier}
        : undef;
}


sub go {
    my ($self, $url) = @_;

    $self->send('Page.navigate', url => $url);
}


sub reload { $_[0]->send('Page.reload') }


sub back {
    my ($self) = @_;
    my $history = $self->call('Page.getNavigationHistory');
    my $entry = $history->{entries}[$history->{currentIndex} - 1];

    $self->send('Page.navigateToHistoryEntry', entryId => $entry->{id});
}


# as the user's stop button, or Escape
sub stop { $_[0]->call('Page.stopLoading') }


sub js {
    my ($self, $expression) = @_;
    my $result = $self->call('Runtime.evaluate', expression => $expression,
                             returnByValue => JSON::PP::true,
                             awaitPromise => JSON::PP::true);

    if ($result->{exceptionDetails}) {
        die "$expression: $result->{exceptionDetails}{exception}{description}\n";
    }

    return $result->{result}{value};
}


sub url { $_[0]->js('location.href') }

sub text { $_[0]->js('document.body ? document.body.innerText : ""') }


# wait_for(JS, WHAT): a page that is just being replaced is asked again
sub wait_for {
    my ($self, $js, $what) = @_;
    my $deadline = time + 180;
    my $value;

    until ($value = eval { $self->js($js) }) {
        die "no $what; instead, at ", eval { $self->url } // '?', ":\n",
            eval { $self->text } // $@, "\n"
            if time > $deadline;
        sleep 0.03;
    }

    return $value;
}


# a page that is there to the end
sub wait_for_page {
    my ($self, $text) = @_;
    my $re = JSON::PP->new->allow_nonref->encode($text);

    $self->wait_for("document.readyState === 'complete' && document.body
                     && document.body.innerText.includes($re)", qq(page with "$text"));
}


# where(CSS): the middle of it, for click(), which may then come when the page
# can't be asked any more
sub where {
    my ($self, $css) = @_;

    return $self->js("(function () {
        var box = document.querySelector('$css').getBoundingClientRect();
        return { x: box.x + box.width / 2, y: box.y + box.height / 2 };
    })()");
}


# click(CSS or PLACE, times => 2, pause => seconds); nth => 2: a double click's other one
sub click {
    my ($self, $where, %o) = @_;
    my $place = ref $where ? $where : $self->where($where);
    my $how = $o{wait} ? 'call' : 'send';

    for my $n (1 .. $o{times} || 1) {
        sleep($o{pause} || 0.12) if $n > 1;

        for my $type (qw(mousePressed mouseReleased)) {
            $self->$how('Input.dispatchMouseEvent', type => $type, %$place,
                        button => 'left', clickCount => $o{nth} // ($o{pause} ? 1 : $n),
                        modifiers => $o{ctrl} ? 2 : 0);
        }
    }
}


sub press {
    my ($self, $key, %o) = @_;
    my $how = $o{wait} ? 'call' : 'send';

    $self->$how('Input.dispatchKeyEvent', type => $_, %{ $key{$key} }) for qw(keyDown keyUp);
}


sub type {
    my ($self, $text) = @_;

    $self->call('Input.insertText', text => $text);
}


sub javascript {
    my ($self, $on) = @_;

    $self->{scripts} = $on;
    $self->call('Emulation.setScriptExecutionDisabled',
                value => $on ? JSON::PP::false : JSON::PP::true);
}


sub phone {
    my ($self, $on) = @_;

    # a click before the page is wide again would go where the button was

    if (!$on) {
        $self->call('Emulation.clearDeviceMetricsOverride');
        $self->wait_for("innerWidth === $self->{wide}", 'wide page');
        return;
    }

    $self->{wide} = $self->js('innerWidth');
    $self->call('Emulation.setDeviceMetricsOverride', width => 360, height => 640,
                deviceScaleFactor => 2, mobile => JSON::PP::true);
}


sub screenshot {
    my ($self, $name) = @_;
    my $directory = $self->{screenshots} // '';

    return if $directory eq '';

    open my $file, '>', "$directory/$name.png" or die "$directory/$name.png: $!\n";
    binmode $file;
    print $file decode_base64($self->call('Page.captureScreenshot')->{data});
    close $file or die "$directory/$name.png: $!\n";
}


sub quit {
    my ($self) = @_;

    return unless $self->{pid};

    # the result of a test must not depend on this
    local ($?, $@);
    my $group = delete $self->{pid};

    eval { $self->send('Browser.close') };
    kill TERM => -$group;
    waitpid $group, 0;

    # all of its processes write into its directory
    sleep 0.02 while Stage::is_running($group);
}

sub DESTROY { $_[0]->quit }


1;
